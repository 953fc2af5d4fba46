import { useEffect } from 'preact/hooks'
import { LinkBanner, LinkState } from './components/link'
import { Mark } from './components/mark'
import { ThemeButton } from './components/theme-button'
import { listen, live } from './lib/feed'
import { route } from './lib/route'
import { useStore } from './lib/store'
import { pages } from './pages'

export function App() {
  const current = useStore(route)
  const { overview, host } = useStore(live)
  const page = pages.find((p) => p.route === current)
  const fsname = overview?.fsname ?? ''
  const place = fsname || host?.names.name || ''
  useEffect(() => listen(page?.topic ?? ''), [page])
  useEffect(() => {
    document.title = [page?.title, place, 'strake'].filter((part, i, all) => part && all.indexOf(part) === i).join(' · ')
  }, [page, place])
  return (
    <>
      <a class="skip" href="#main">
        Skip to content
      </a>
      <header class="top">
        <div class="top-in">
          <a class="brand" href="#/" aria-label="strake, first page">
            <Mark />
            <span class="brand-name">strake</span>
          </a>
          <nav class="nav" aria-label="Pages">
            {pages.map((p) => (
              <a href={'#/' + p.route} aria-current={p === page ? 'page' : undefined}>
                {p.title}
              </a>
            ))}
          </nav>
          <div class="top-end">
            <LinkState />
            <ThemeButton />
          </div>
        </div>
      </header>
      <LinkBanner />
      <main id="main" tabIndex={-1}>
        {page ? <page.component /> : <p class="empty">There is no page at this address. <a href="#/">Go to the overview.</a></p>}
      </main>
      <footer class="foot">
        <span>The same figures:</span>
        <a href="/metrics">Prometheus</a>
        <a href="/api/v1/overview">overview JSON</a>
        <a href="/api/v1/host">host JSON</a>
        <a href="/api/v1/locks">locks JSON</a>
        <a href="/api/v1/hashtables">hash tables JSON</a>
        <a href="/api/v1/recovery">recovery JSON</a>
        <a href="/api/v1/stats">statistics JSON</a>
        <a class="foot-end" href="/assets/licences.txt">Licences</a>
      </footer>
    </>
  )
}
