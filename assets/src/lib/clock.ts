import { Store } from './store'

/** The page's clock, once a second, for ages that grow while nothing is heard. */
export const now = new Store(Date.now())

export function startClock(): void {
  setInterval(() => now.set(Date.now()), 1000)
}
