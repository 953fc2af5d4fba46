import type { ComponentType } from 'preact'
import type { Topic } from '../lib/feed'
import { HashTablesPage } from './hashtables/hashtables'
import { LocksPage } from './locks/locks'
import { Overview } from './overview/overview'
import { RecoveryPage } from './recovery/recovery'

export interface Page {
  /** What follows "#/" in the address. */
  route: string
  title: string
  /** What the page needs from the live feed beside what every page gets. */
  topic: Topic
  component: ComponentType
}

/** The pages in the order of the navigation. A page is listed when it works. */
export const pages: Page[] = [
  { route: '', title: 'Overview', topic: '', component: Overview },
  { route: 'locks', title: 'Locks', topic: 'locks', component: LocksPage },
  { route: 'recovery', title: 'Recovery', topic: 'recovery', component: RecoveryPage },
  { route: 'hashtables', title: 'Hash tables', topic: 'hashtables', component: HashTablesPage },
]
