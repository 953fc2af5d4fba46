import { render } from 'preact'
import 'uplot/dist/uPlot.min.css'
import './styles/tokens.css'
import './styles/base.css'
import './styles/parts.css'
import './styles/locks.css'
import './styles/hashtables.css'
import './styles/recovery.css'
import { App } from './app'
import { startClock } from './lib/clock'
import { connect, watch } from './lib/feed'
import { startRoute } from './lib/route'
import { startTheme } from './lib/theme'

startTheme()
startRoute()
startClock()
connect()
watch()
render(<App />, document.getElementById('app')!)
