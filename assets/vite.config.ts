import { readdirSync, rmSync } from 'node:fs'
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
