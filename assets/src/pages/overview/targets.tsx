import { Bar } from '../../components/bar'
import { Panel } from '../../components/panel'
import { Status } from '../../components/status'
import { now } from '../../lib/clock'
import { live } from '../../lib/feed'
import { age, bytes, count, percent, rate } from '../../lib/format'
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
              <th scope="col" class="right">Available</th>
              <th scope="col" class="col-inodes">Inodes</th>
              {traffic && <th scope="col" class="right col-rate">Read</th>}
              {traffic && <th scope="col" class="right col-rate">Write</th>}
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
      <SpaceCells target={t} />
      <td>
        {t.inodes && (
          <>
            <Bar share={1 - t.inodes.free / t.inodes.total} />
            <span class="second num">
              {count(t.inodes.total - t.inodes.free)} of {count(t.inodes.total)}
            </span>
          </>
        )}
      </td>
      {traffic && <td class="right num">{t.readPerSec !== undefined && rate(t.readPerSec)}</td>}
      {traffic && <td class="right num">{t.writePerSec !== undefined && rate(t.writePerSec)}</td>}
    </tr>
  )
}

function SpaceCells({ target: { space } }: { target: Target }) {
  if (!space) return <td colSpan={2} class="muted">not measured yet</td>
  const share = 1 - space.availBytes / space.totalBytes
  return (
    <>
      <td>
        <Bar share={share} />
        <span class="second num">
          {bytes(space.totalBytes - space.freeBytes)} of {bytes(space.totalBytes)}, {percent(share)} full
        </span>
      </td>
      <td class="right num">{bytes(space.availBytes)}</td>
    </>
  )
}
