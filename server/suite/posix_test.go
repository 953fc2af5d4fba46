package suite

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
)

// notPosix are tests of that suite that ask for what POSIX forbids.
var notPosix = map[string]string{
	"FcntlFlockLocksFile": "wants EAGAIN for two fcntl locks of one process, which never conflict (fcntl(2)); go-fuse's own " +
		"runner leaves it out too. TestFcntlLocksGoWithTheirProcess asks the question with two processes",
}

// TestGoFusePosixSuite runs every test of go-fuse's own suite on the mount.
func TestGoFusePosixSuite(t *testing.T) {
	judged(t, func(t *testing.T, c *cluster) {
		base := c.folder(t)
		for _, name := range slices.Sorted(maps.Keys(posixtest.All)) {
			t.Run(name, func(t *testing.T) {
				if why := notPosix[name]; why != "" {
					t.Skip(why)
				}
				if name == "OpenSymlinkRace" && c.plain {
					t.Skip("tells the mount from the root file system by its device number")
				}
				dir := filepath.Join(base, name)
				must(t, os.Mkdir(dir, 0o755))
				posixtest.All[name](t, dir)
			})
		}
	})
}
