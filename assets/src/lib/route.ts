import { Store } from './store'

/** The page's name: what follows "#/" in the address, "" for the first page. */
const read = (): string => location.hash.replace(/^#\/?/, '').split('?')[0] ?? ''

export const route = new Store(read())

export function startRoute(): void {
  addEventListener('hashchange', () => route.set(read()))
}
