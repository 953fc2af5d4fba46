import { Bar } from '../../components/bar'
import { Panel } from '../../components/panel'
import { Status } from '../../components/status'
import { now } from '../../lib/clock'
import { live } from '../../lib/feed'
import { age, bytes, count, fullness, percent, rate } from '../../lib/format'
import { useStore } from '../../lib/store'
import type { Target } from '../../lib/types'

export function Targets() {
  const { overview, skewMs } = useStore(live)
  const serverNow = useStore(now) + skewMs
  if (!overview) return null
  const { targets } = overview
  const traffic = targets.some((t) => t.readPerSec !== undefined)
  if (targets.length === 0) {
    return (
      <Panel id="targets" title="Targets" json="/api/v1/overview">
        <p class="empty">
          No target has registered with this file system yet. Start one with <code>strake --role=oss --data DIR --mgs HOST:PORT</code>.
        </p>
      </Panel>
    )
  }
  return (
    <Panel id="targets" title="Targets" json="/api/v1/overview">
      <div class="scroll">
        <table class="table targets">
          <thead>
            <tr>
              <th scope="col">State</th>
              <th scope="col">Target</th>
              <th scope="col" class="col-space">Space</th>
              <th scope="col" class="col-inodes">Inodes</th>
              {traffic && <th scope="col" class="right col-traffic">Traffic</th>}
            </tr>
          </thead>
          <tbody>
            {targets.map((t) => (
              <TargetRow key={t.name} target={t} traffic={traffic} serverNow={serverNow} />
            ))}
          </tbody>
        </table>
      </div>
    </Panel>
  )
}

function TargetRow({ target: t, traffic, serverNow }: { target: Target; traffic: boolean; serverNow: number }) {
  const since = t.sinceMs ? `for ${age(serverNow - t.sinceMs)}` : ''
  return (
    <tr class={t.stale ? 'row-stale' : undefined}>
      <td>
        {t.stale ? <Status look="stale" word="stale" /> : <Status look={t.tone} word={t.state} />}
        <span class="second num">{t.stale ? `${age(t.ageMs)} ago: ${t.state}` : since}</span>
      </td>
      <th scope="row">
        <span class="name">{t.name}</span>
        <span class="second num">{t.address ?? 'address not known'}</span>
      </th>
      <td class="cell-space">
        <SpaceUse target={t} />
      </td>
      <td class="cell-inodes">
        {t.inodes && (
          <>
            <Bar share={1 - t.inodes.free / t.inodes.total} />
            <span class="second num">
              {count(t.inodes.total - t.inodes.free)} of {count(t.inodes.total)}
              <span class="on-narrow"> inodes</span>
            </span>
          </>
        )}
      </td>
      {traffic && <TrafficCell target={t} />}
    </tr>
  )
}

function SpaceUse({ target: { space } }: { target: Target }) {
  if (!space) return <span class="muted">not measured yet</span>
  const share = fullness(space)
  return (
    <>
      <Bar share={share} />
      <span class="second num space-words">
        <span>
          {bytes(space.totalBytes - space.freeBytes)} of {bytes(space.totalBytes)}, {percent(share)}
        </span>
        <span class="space-left">{bytes(space.availBytes)} left</span>
      </span>
    </>
  )
}

function TrafficCell({ target: t }: { target: Target }) {
  if (t.readPerSec === undefined || t.writePerSec === undefined) return <td class="cell-traffic" />
  return (
    <td class="right num cell-traffic">
      <span class="traffic">
        {rate(t.readPerSec)} <i>read</i>
      </span>
      <span class="traffic">
        {rate(t.writePerSec)} <i>written</i>
      </span>
    </td>
  )
}
