import { live } from '../../lib/feed'
import { useStore } from '../../lib/store'
import { Activity } from './activity'
import { Answer } from './answer'
import { Nodes } from './nodes'
import { Statistics } from './statistics'
import { Targets } from './targets'

/** The answer on top, the evidence under it, the raw table last. */
export function Overview() {
  const { overview, link } = useStore(live)
  if (!overview) {
    return link.state === 'connecting' ? <p class="empty">Reading the state of the file system.</p> : null
  }
  return (
    <div class={link.state === 'lost' ? 'page page-old' : 'page'}>
      <Answer />
      <Targets />
      <Activity />
      <Nodes />
      <Statistics />
    </div>
  )
}
