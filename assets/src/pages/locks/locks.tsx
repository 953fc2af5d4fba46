import { live } from '../../lib/feed'
import { useStore } from '../../lib/store'
import { LocksAnswer } from './answer'
import { LockActivity } from './activity'
import { Clients, Servers } from './namespaces'
import { Resources } from './resources'

/** Who waits for which lock, who holds it, and how the lock servers and caches of this process fare. */
export function LocksPage() {
  const { locks, link } = useStore(live)
  if (!locks) {
    return link.state === 'lost' ? null : <p class="empty">Reading the locks.</p>
  }
  return (
    <div class={link.state === 'lost' ? 'page page-old' : 'page'}>
      <LocksAnswer locks={locks} />
      <Resources locks={locks} />
      <LockActivity locks={locks} />
      <Servers locks={locks} />
      <Clients locks={locks} />
    </div>
  )
}
