import { Store } from './store'

export type Theme = 'auto' | 'light' | 'dark'
const order: Theme[] = ['auto', 'light', 'dark']
const key = 'strake.theme'

function stored(): Theme {
  try {
    const value = localStorage.getItem(key)
    return order.find((t) => t === value) ?? 'auto'
  } catch {
    return 'auto' // storage is forbidden: the choice lasts as long as the page
  }
}

export const theme = new Store<Theme>(stored())
/** Grows when colours on the page may have changed: canvases read them again. */
export const palette = new Store(0)

function apply(): void {
  const root = document.documentElement
  if (theme.value === 'auto') delete root.dataset.theme
  else root.dataset.theme = theme.value
  palette.set(palette.value + 1)
}

export function nextTheme(): void {
  const next = order[(order.indexOf(theme.value) + 1) % order.length]!
  theme.set(next)
  try {
    localStorage.setItem(key, next)
  } catch {
    // As above.
  }
  apply()
}

export function startTheme(): void {
  apply()
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', apply)
}
