import { Panel } from '../../components/panel'
import { Status } from '../../components/status'
import { now } from '../../lib/clock'
import { live } from '../../lib/feed'
import { age } from '../../lib/format'
import { useStore } from '../../lib/store'

export function Nodes() {
  const { overview, skewMs } = useStore(live)
  const serverNow = useStore(now) + skewMs
  if (!overview || overview.nodes.length === 0) return null
  return (
    <Panel id="nodes" title="Nodes" json="/api/v1/overview">
      <div class="scroll">
        <table class="table">
          <thead>
            <tr>
              <th scope="col" class="col-state">State</th>
              <th scope="col">Host</th>
              <th scope="col">Roles</th>
              <th scope="col">Version</th>
              <th scope="col" class="right">Joined</th>
            </tr>
          </thead>
          <tbody>
            {overview.nodes.map((n) => (
              <tr key={n.host + (n.address ?? '')} class={n.stale ? 'row-stale' : undefined}>
                <td>
                  {n.stale ? <Status look="stale" word={`stale, heard ${age(n.ageMs)} ago`} /> : <Status look="ok" word="reporting" />}
                </td>
                <th scope="row">
                  <span class="name">{n.host}</span> {n.address && <span class="muted num">{n.address}</span>}
                </th>
                <td>
                  {n.roles.map((r) => (
                    <span class="role" key={r}>
                      {r}
                    </span>
                  ))}
                </td>
                <td class="num">{n.version}</td>
                <td class="right num">{n.sinceMs ? `${age(serverNow - n.sinceMs)} ago` : ''}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Panel>
  )
}
