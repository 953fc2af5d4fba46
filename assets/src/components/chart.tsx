import { useEffect, useRef } from 'preact/hooks'
import uPlot from 'uplot'
import { clock } from '../lib/format'
import { useStore } from '../lib/store'
import { palette } from '../lib/theme'

export interface ChartProps {
  /** Unix seconds, ascending. */
  times: number[]
  /** One column per line, of the length of times; null where nothing was measured. */
  lines: (number | null)[][]
  /** The time axis, in Unix seconds. */
  from: number
  to: number
  /** Upper end of the value axis from the largest value shown. */
  top: (largest: number) => number
  label: (value: number) => string
  /** Charts of one group share the cursor. */
  group: string
  withTimes: boolean
  onCursor: (index: number | null) => void
}

const plotHeight = 58
const timesHeight = 24
const labelWidth = 74

const token = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim()

/** Resolves a token that may be light-dark(…): a canvas takes plain colours only. */
function colour(name: string): string {
  const probe = document.createElement('span')
  probe.style.color = `var(${name})`
  document.body.append(probe)
  const resolved = getComputedStyle(probe).color
  probe.remove()
  return resolved
}

function options(p: () => ChartProps, width: number): uPlot.Options {
  const [first, second, ink, grid] = [colour('--accent'), colour('--line-2'), colour('--ink-3'), colour('--hair')]
  const wash = colour('--accent-wash')
  const font = `500 10.500px ${token('--font')}`
  const { lines, group, withTimes } = p()
  return {
    width,
    height: plotHeight + (withTimes ? timesHeight : 0),
    padding: [7, 0, 1, 0],
    legend: { show: false },
    cursor: { sync: { key: group }, y: false, drag: { x: false, y: false }, points: { size: 7, width: 1.5 } },
    scales: {
      x: { time: true, range: () => [p().from, p().to] },
      y: { range: (_, __, max) => [0, p().top(max ?? 0)] },
    },
    axes: [
      {
        size: withTimes ? timesHeight : 0,
        stroke: ink,
        font,
        gap: 6,
        space: 90,
        grid: { stroke: grid, width: 1 },
        ticks: { show: false },
        values: (u, ticks) => {
          const length = ticks.some((t) => t % 60 !== 0) ? 8 : 5
          // A label that would be cut at the left edge is left out.
          return ticks.map((t) => (withTimes && u.valToPos(t, 'x') > 26 ? clock(t * 1000).slice(0, length) : ''))
        },
      },
      {
        side: 1,
        size: labelWidth,
        stroke: ink,
        font,
        gap: 8,
        grid: { stroke: grid, width: 1 },
        ticks: { show: false },
        splits: (_, __, min, max) => [min, (min + max) / 2, max],
        // The baseline is 0 on every chart, so only the top is labelled.
        values: (_, ticks) => ticks.map((v, i) => (i === 2 ? p().label(v) : '')),
      },
    ],
    series: [
      {},
      ...lines.map((_, i) => ({
        stroke: i === 0 ? first : second,
        width: 1.5,
        ...(i === 0 ? { fill: wash } : { dash: [4, 3] }),
        points: { show: false },
        spanGaps: false,
      })),
    ],
    hooks: { setCursor: [(u) => p().onCursor(u.cursor.idx ?? null)] },
  }
}

/** One small plot. Its figures are said in words beside it, so it is hidden from readers. */
export function Chart(props: ChartProps) {
  const box = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot | null>(null)
  const latest = useRef(props)
  latest.current = props
  const colours = useStore(palette)
  const data = (): uPlot.AlignedData => [latest.current.times, ...latest.current.lines] as uPlot.AlignedData

  useEffect(() => {
    const element = box.current!
    const u = new uPlot(options(() => latest.current, element.clientWidth), data(), element)
    plot.current = u
    const resize = new ResizeObserver(() => u.setSize({ width: element.clientWidth, height: u.height }))
    resize.observe(element)
    return () => {
      resize.disconnect()
      u.destroy()
      plot.current = null
    }
  }, [colours, props.withTimes, props.lines.length])

  useEffect(() => plot.current?.setData(data()))
  return <div class="chart" ref={box} aria-hidden="true" />
}

/** Moves the shared cursor of a group to a time; null takes it away. */
export function moveCursor(group: string, time: number | null): void {
  for (const u of uPlot.sync(group).plots) {
    u.setCursor(time === null ? { left: -10, top: -10 } : { left: u.valToPos(time, 'x'), top: 10 })
  }
}
