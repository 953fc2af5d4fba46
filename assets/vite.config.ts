import { readdirSync, readFileSync, rmSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vite'

const dist = fileURLToPath(new URL('./dist/', import.meta.url))

export default defineConfig({
  base: '/',
  build: {
    outDir: 'dist',
    // dist/placeholder.html is under version control, so it is emptied below instead.
    emptyOutDir: false,
    target: 'es2022',
    // The first that know light-dark(); without it the stylesheet doubles every colour.
    cssTarget: ['chrome123', 'firefox120', 'safari17.5'],
    modulePreload: { polyfill: false },
    // Inlined files would be data: URLs, which the page's policy refuses for fonts.
    assetsInlineLimit: 0,
  },
  plugins: [
    {
      // What is in the bundle goes out with the words of its licences.
      name: 'licences',
      apply: 'build',
      generateBundle() {
        const { dependencies } = JSON.parse(readFileSync(new URL('./package.json', import.meta.url), 'utf8'))
        const texts = Object.keys(dependencies).map((name) => {
          const text = readFileSync(new URL(`./node_modules/${name}/LICENSE`, import.meta.url), 'utf8')
          return `${name}\n\n${text.trim()}\n`
        })
        this.emitFile({ type: 'asset', fileName: 'assets/licences.txt', source: texts.join('\n\n') })
      },
    },
    {
      name: 'empty-dist-but-placeholder',
      apply: 'build',
      buildStart() {
        for (const name of readdirSync(dist)) {
          if (name !== 'placeholder.html') rmSync(dist + name, { recursive: true })
        }
      },
    },
  ],
  server: { proxy: { '/api': 'http://127.0.0.1:9881', '/metrics': 'http://127.0.0.1:9881' } },
})
