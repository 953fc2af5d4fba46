// Opens the dashboard in a real browser and checks what a person would see. Run by the test
// of ui/dash: node page.mjs URL PROFILE_DIR [SCREENSHOT_DIR]. It writes "stop" and "start" to
// stdout to have the server stopped and started again, and exits 0 when all held.

import { strict as assert } from 'node:assert'
import { chromium } from 'playwright-core'

const [url, profile, shots] = process.argv.slice(2)
const { origin } = new URL(url)
const errors = []
let mayFail = false

const browser = await chromium.launchPersistentContext(profile, {
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  headless: true,
  viewport: { width: 1280, height: 900 },
  args: [
    '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
    '--disable-background-networking', '--disable-component-update', '--disable-sync',
  ],
})
const page = browser.pages()[0] ?? (await browser.newPage())
page.setDefaultTimeout(15_000)
page.on('console', (m) => m.type() === 'error' && !mayFail && errors.push(`console: ${m.text()}`))
page.on('pageerror', (e) => errors.push(`page error: ${e.message}`))
page.on('request', (r) => {
  const target = new URL(r.url())
  if (target.protocol !== 'data:' && target.origin !== origin) errors.push(`request to ${r.url()}`)
})

const visible = (text) => page.getByText(text).first().waitFor()
const text = (selector) => page.locator(selector).first().innerText()
const until = async (what, check) => {
  for (let i = 0; i < 150; i++) {
    if (await check()) return
    await page.waitForTimeout(100)
  }
  assert.fail(`not seen in 15 s: ${what}`)
}

async function shot(name) {
  if (!shots) return
  await page.evaluate(() => (document.activeElement?.blur(), scrollTo(0, 0)))
  await page.screenshot({ path: `${shots}/${name}.png`, fullPage: true })
}

/** A page in both colour schemes, wide and narrow: nothing scrolls sideways. */
async function views(name) {
  for (const scheme of ['dark', 'light']) {
    await page.emulateMedia({ colorScheme: scheme })
    for (const width of [420, 1280]) {
      await page.setViewportSize({ width, height: 900 })
      await until(`${name}: no sideways scrolling at ${width}`, () => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth))
      if (shots) await page.waitForTimeout(600)
      await shot(`${name}-${scheme}-${width}`)
    }
  }
}

// What a name must not do: see page_locks_test.go.
const hostile = `<img src=x onerror="document.title='taken'">`

try {
  await page.goto(url)
  await visible('All 3 targets are active.')
  await visible('Live')
  assert.equal(await page.locator('.targets tbody tr').count(), 3)
  assert.match(await page.title(), /strake/)

  // A counter that grows is a rate in the headline and in the table of targets, live.
  const reading = () => text('.cell:has(dt:text-is("Reading")) .figure')
  await until('a reading rate', async () => (await page.locator('.cell:has(dt:text-is("Reading"))').count()) > 0 && (await reading()) !== '0')
  const first = await page.locator('.link time').innerText()
  await until('a later tick', async () => (await page.locator('.link time').innerText()) !== first)

  // The charts have lines, one time axis, and a cursor that the keyboard moves.
  assert.ok((await page.locator('.chart canvas').count()) >= 5, 'fewer than five charts')
  if (shots) await page.waitForTimeout(Number(process.env.SHOT_WAIT_MS ?? 0))
  await page.locator('.plots').focus()
  await page.keyboard.press('ArrowLeft')
  await until('the time under the cursor', async () => /at \d\d:\d\d:\d\d/.test(await text('#activity .panel-note')))
  for (let i = 0; shots && i < 20; i++) await page.keyboard.press('ArrowLeft')
  if (shots) await page.screenshot({ path: `${shots}/cursor.png`, fullPage: true })
  await page.keyboard.press('Escape')
  await until('now again', async () => /^last \d+/.test(await text('#activity .panel-note')))

  for (const scheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme: scheme })
    for (const width of [1280, 800]) {
      await page.setViewportSize({ width, height: 900 })
      await page.waitForTimeout(shots ? 1500 : 50)
      await shot(`${scheme}-${width}`)
    }
  }
  await page.setViewportSize({ width: 420, height: 900 })
  await until('no sideways scrolling at 420', () =>
    page.evaluate(() => document.documentElement.scrollWidth <= innerWidth))
  await shot('dark-420')
  await page.setViewportSize({ width: 1280, height: 900 })
  await page.emulateMedia({ colorScheme: 'light' })

  // The raw table: filter by words, by pattern, values that change.
  await page.locator('.statistics summary').click()
  await page.locator('#filter').fill('ost0000 read_bytes')
  await until('one entry', async () => (await page.locator('.raw tbody tr').count()) === 1)
  const before = await text('.raw tbody td')
  await until('a changed value', async () => (await text('.raw tbody td')) !== before)
  await page.locator('#filter').fill('obdfilter.*.read_bytes')
  await until('two entries', async () => (await page.locator('.raw tbody tr').count()) === 2)
  await page.locator('#filter').fill('host.')
  await page.waitForTimeout(50)
  await shot('statistics')
  mayFail = true // the browser logs a refused pattern and a lost server as failed resources
  await page.locator('#filter').fill('[')
  await visible('bad parameter pattern')
  await page.locator('.statistics summary').click()

  // The locks: live, with path, holders and waiters; what others named is text and nothing else.
  const title = await page.title()
  await page.locator('.nav a', { hasText: 'Locks' }).click()
  await visible('for a lock')
  assert.match(await page.title(), /^Locks/)
  await until('a contended file with its path', async () =>
    (await page.locator('.contended .name').allInnerTexts()).some((name) => name === `/projects/${hostile}/results.db`))
  await until('an object with its stripe', async () => /object 0:0x1267, stripe 1/.test(await text('.contended')))
  await until('a holder with its mode', async () => (await page.locator('.parties .mode', { hasText: 'PW' }).count()) > 1)
  await until('a hostile client, as text', async () => (await text('.contended')).includes(hostile))
  assert.equal(await page.locator('#lock-servers tbody tr').count(), 2)
  assert.equal(await page.locator('#lock-caches tbody tr').count(), 1)
  await until('six thousand locks', async () => /6,0\d\d\s+locks/.test(await text('#lock-servers tbody')))
  await until('locks granted per second', async () => Number((await text('.cell:has(dt:text-is("Granted")) .figure')).replace(',', '')) > 0)
  const waited = await text('#lock-servers tbody tr td:nth-of-type(4)')
  await until('a growing number of waits', async () => (await text('#lock-servers tbody tr td:nth-of-type(4)')) !== waited)
  assert.ok((await page.locator('#lock-activity canvas').count()) >= 2, 'fewer than two charts of locks')
  await views('locks')

  // The hash tables: a histogram each, the limit with its rule.
  await page.locator('.nav a', { hasText: 'Hash tables' }).click()
  await visible('tables are in good shape.')
  assert.equal(await page.locator('.card').count(), 4)
  const card = page.locator('.card', { hasText: 'llite.strake-1.inodes' })
  assert.ok((await card.locator('.chains-bar').count()) >= 2, 'a histogram with fewer than two bars')
  await until('the rule of the limit', async () => (await card.innerText()).includes(`max_cached_objects: ${hostile}`))
  const found = () => card.locator('.card-facts').innerText()
  const foundFirst = await found()
  await until('figures that change', async () => (await found()) !== foundFirst)
  await views('hashtables')
  await page.locator('#figures summary').click()
  await until('every table in the raw table', async () => (await page.locator('#figures tbody tr').count()) === 4)

  // Recovery: who is missing, what is queued, how much time is left, what is on disk; and the connections.
  await page.locator('.nav a', { hasText: 'Recovery' }).click()
  await visible('strake-MDT0000 takes its clients back: 7 of 8 are here, 4 are done.')
  assert.equal(await page.locator('#recovery-targets tbody tr').count(), 3)
  assert.equal(await page.locator('#recovery-imports tbody tr').count(), 3)
  await until('the missing client, as text', async () => (await text('.missing')).includes(hostile))
  await until('what to do', async () => (await text('.findings')).includes('lctl abort_recovery strake-MDT0000'))
  const row = '#recovery-targets tbody tr'
  const left = async () => Number(/(\d+) s left/.exec(await text(row))?.[1])
  const leftFirst = await left()
  await until('less time left', async () => (await left()) < leftFirst)
  const transnoFirst = await text(`${row} td:nth-of-type(4)`)
  assert.match(transnoFirst, /5·[\d,]+[\s\S]*1,500 not on disk/)
  await until('a growing transno', async () => (await text(`${row} td:nth-of-type(4)`)) !== transnoFirst)
  await until('the queue', async () => /312 queued/.test(await text(row)))
  await until('commits forced per second', async () => Number(await text('.cell:has(dt:text-is("Commits forced by sharing")) .figure')) > 1)
  await until('a lost connection', async () => /OST0001[\s\S]*disconn[\s\S]*for 6\d min/.test(await text('#recovery-imports')))
  await views('recovery')
  assert.equal(await page.locator('img').count(), 0, 'a name became an element')
  await page.locator('.nav a', { hasText: 'Overview' }).click()
  await visible('All 3 targets are active.')
  assert.equal(await page.title(), title)

  // Trouble is said in words.
  process.stdout.write('trouble\n')
  await visible('attention.')
  await visible('has not reported for')
  await page.getByText('unreachable').first().waitFor()
  await page.waitForTimeout(shots ? 1500 : 50)
  await shot('trouble-light')
  await page.emulateMedia({ colorScheme: 'dark' })
  await page.waitForTimeout(shots ? 1500 : 50)
  await shot('trouble-dark')
  await page.emulateMedia({ colorScheme: 'light' })

  // A server that goes away and comes back.
  process.stdout.write('stop\n')
  await visible('No connection to the server for')
  await page.waitForTimeout(shots ? 1500 : 50)
  await shot('lost')
  process.stdout.write('start\n')
  await until('live again', async () => /Live/.test(await text('.link')))
  assert.equal(await page.locator('.banner').count(), 0)

  assert.deepEqual(errors, [])
} finally {
  await browser.close()
}
