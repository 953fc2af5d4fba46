import { Plots, round10, type Rows } from '../../components/plots'
import { perSecond } from '../../lib/format'
import type { Locks } from '../../lib/types'

const top = (v: number): number => round10(v, 10)

const serverRows: Rows = {
  title: 'Lock servers of this process',
  rows: [
    { title: 'Locks', lines: [{ key: 'lockGrant', name: 'granted' }, { key: 'lockCancel', name: 'given back' }], say: perSecond, top },
    { title: 'Conflicts', lines: [{ key: 'lockCallBack', name: 'called back' }, { key: 'lockWait', name: 'had to wait' }], say: perSecond, top },
  ],
}

const clientRows: Rows = {
  title: 'Mounts of this process',
  rows: [
    { title: 'Locks', lines: [{ key: 'mirrorGrant', name: 'granted' }, { key: 'mirrorCancel', name: 'given back' }], say: perSecond, top },
    { title: 'Lock cache', lines: [{ key: 'mirrorHit', name: 'lock found' }], say: perSecond, top },
  ],
}

export function LockActivity({ locks }: { locks: Locks }) {
  if (locks.namespaces.length === 0) return null
  return <Plots id="lock-activity" title="Activity" json="/api/v1/locks" empty="No figure was measured yet." groups={[serverRows, clientRows]} />
}
