import { now } from '../lib/clock'
import { connect, live } from '../lib/feed'
import { age, clock } from '../lib/format'
import { useStore } from '../lib/store'
import { Glyph } from './status'

/** The connection in the head of the page. */
export function LinkState() {
  const { link, heardMs, skewMs } = useStore(live)
  if (link.state === 'live') {
    return (
      <span class="link" title="Time of the server at the last message">
        <span class="pulse" key={heardMs} aria-hidden="true" />
        Live <time class="num">{clock(heardMs + skewMs)}</time>
      </span>
    )
  }
  return (
    <span class="link link-off">
      <Glyph look="stale" size={12} />
      {link.state === 'connecting' ? 'Connecting' : 'Reconnecting'}
    </span>
  )
}

/** What to know while nothing is heard. */
export function LinkBanner() {
  const { link, overview } = useStore(live)
  const t = useStore(now)
  if (link.state !== 'lost') return null
  const wait = Math.max(0, Math.ceil((link.retryAtMs - t) / 1000))
  return (
    <div class="banner" role="status">
      <div class="banner-in">
        <Glyph look="warn" />
        <span>
          {overview ? (
            <>
              <b>No connection to the server for {age(t - link.sinceMs)}.</b> What you see is from {clock(link.sinceMs)}.
            </>
          ) : (
            <>
              <b>The server does not answer.</b> Check that strake runs, and that no more than 64 pages are open.
            </>
          )}{' '}
          {wait > 0 ? `Trying again in ${wait} s.` : 'Trying again.'}
        </span>
        <button type="button" onClick={connect}>
          Try now
        </button>
      </div>
    </div>
  )
}
