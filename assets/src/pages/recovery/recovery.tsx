import { live } from '../../lib/feed'
import { useStore } from '../../lib/store'
import { RecoveryAnswer } from './answer'
import { Imports } from './imports'
import { RecoveryTargets } from './targets'

/** Where every target is in getting its clients back after a restart, what is not on disk yet, and which connections stand. */
export function RecoveryPage() {
  const { recovery, link } = useStore(live)
  if (!recovery) {
    return link.state === 'lost' ? null : <p class="empty">Reading the state of recovery.</p>
  }
  return (
    <div class={link.state === 'lost' ? 'page page-old' : 'page'}>
      <RecoveryAnswer view={recovery} />
      <RecoveryTargets view={recovery} />
      <Imports view={recovery} />
    </div>
  )
}
