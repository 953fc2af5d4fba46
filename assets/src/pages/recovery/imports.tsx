import { Panel } from '../../components/panel'
import { Status } from '../../components/status'
import { age, count } from '../../lib/format'
import type { Import, Recovery } from '../../lib/types'

/** The connections of this process to targets. */
export function Imports({ view }: { view: Recovery }) {
  const { imports } = view
  if (imports.length === 0) return null
  return (
    <Panel id="recovery-imports" title="Connections" json="/api/v1/recovery">
      <div class="scroll">
        <table class="table imports">
          <thead>
            <tr>
              <th scope="col">Connection</th>
              <th scope="col">State</th>
              <th scope="col">Address</th>
              <th scope="col" class="right">In flight</th>
              <th scope="col" class="right">Kept for replay</th>
              <th scope="col" class="right">Reconnects</th>
              <th scope="col" class="right">Evictions</th>
            </tr>
          </thead>
          <tbody>
            {imports.map((i) => (
              <Row key={i.name} of={i} at={view.atMs} />
            ))}
          </tbody>
        </table>
      </div>
    </Panel>
  )
}

function Row({ of: i, at }: { of: Import; at: number }) {
  return (
    <tr>
      <th scope="row">
        <span class="name">{i.target}</span>
        <span class="second">{i.name}</span>
      </th>
      <td class="cell-state">
        <Status look={i.tone} word={i.active ? i.state.toLowerCase().replaceAll('_', ' ') : 'deactivated'} />
        <span class="second num">for {age(at - i.since)}</span>
        {i.error && <span class="second wrap">{i.error}</span>}
      </td>
      <td class="num cell-address">{i.address ?? ''}</td>
      <td class="right num">
        <span class="on-narrow">in flight </span>
        {count(i.rpcs_in_flight)}
      </td>
      <td class="right num">
        <span class="on-narrow">kept for replay </span>
        {i.replay_requests === undefined ? <span class="muted">none</span> : count(i.replay_requests)}
      </td>
      <td class="right num">
        <span class="on-narrow">reconnects </span>
        {count(i.reconnects)}
      </td>
      <td class="right num">
        <span class="on-narrow">evictions </span>
        {count(i.evictions)}
      </td>
    </tr>
  )
}
