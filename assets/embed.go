// Package assets holds the web page of the dashboard: its sources (TypeScript, Preact,
// uPlot) and, in dist, the bundle that `npm run build` makes of them and that goes into the
// binary.
//
// Only dist/placeholder.html is kept under version control, so that the binary builds
// without Node; a binary built so serves that page, which says what to do.
package assets

import (
	"embed"
	"io/fs"
)

//go:embed all:dist
var dist embed.FS

// FS returns the built bundle: index.html and assets/*, or placeholder.html alone when the
// bundle was not built.
func FS() fs.FS {
	sub, err := fs.Sub(dist, "dist")
	if err != nil {
		panic(err) // "dist" is a valid path, and that is all Sub checks
	}
	return sub
}
