import type { ComponentType } from 'preact'
import { Overview } from './overview/overview'

export interface Page {
  /** What follows "#/" in the address. */
  route: string
  title: string
  component: ComponentType
}

/** The pages in the order of the navigation. A page is listed when it works. */
export const pages: Page[] = [{ route: '', title: 'Overview', component: Overview }]
