import { useStore } from '../lib/store'
import { nextTheme, theme } from '../lib/theme'

const words = { auto: 'as the system', light: 'light', dark: 'dark' }

export function ThemeButton() {
  const current = useStore(theme)
  return (
    <button type="button" class="theme" onClick={nextTheme} title={`Colours: ${words[current]}`} aria-label={`Colours: ${words[current]}. Change.`}>
      <svg viewBox="0 0 16 16" width="15" height="15" aria-hidden="true">
        {current === 'auto' && (
          <>
            <circle class="line" cx="8" cy="8" r="5.7" />
            <path class="fill" d="M8 2.300a5.7 5.7 0 0 1 0 11.400Z" />
          </>
        )}
        {current === 'light' && (
          <>
            <circle class="line" cx="8" cy="8" r="2.9" />
            <path class="line" d="M8 .8v1.800M8 13.400v1.800M.8 8h1.800M13.4 8h1.800M2.9 2.900l1.3 1.300M11.8 11.800l1.3 1.300M2.9 13.100l1.3-1.300M11.8 4.200l1.3-1.3" />
          </>
        )}
        {current === 'dark' && <path class="line" d="M13.6 9.700A6 6 0 0 1 6.3 2.400a5.9 5.9 0 1 0 7.3 7.300Z" />}
      </svg>
    </button>
  )
}
