package suite

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// git runs git without the host's configuration.
func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	none := filepath.Join(t.TempDir(), "config")
	must(t, os.WriteFile(none, nil, 0o644))
	cmd := append([]string{"env", "GIT_CONFIG_GLOBAL=" + none, "GIT_CONFIG_SYSTEM=" + none, "GIT_AUTHOR_NAME=suite",
		"GIT_AUTHOR_EMAIL=suite@localhost", "GIT_COMMITTER_NAME=suite", "GIT_COMMITTER_EMAIL=suite@localhost",
		"git", "-c", "safe.directory=*", "-c", "init.defaultBranch=main"}, args...)
	return run(t, dir, cmd...)
}

// TestGitCloneBuildAndTestOfThisRepository does a day's work on the mount.
func TestGitCloneBuildAndTestOfThisRepository(t *testing.T) {
	need(t, "git", "go")
	root := moduleRoot()
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		t.Skip("this tree is no git repository")
	}
	judged(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		tree := filepath.Join(dir, "tree")
		git(t, dir, "clone", "-q", "file://"+root, "tree")
		clean(t, tree)
		bin := filepath.Join(dir, "bin")
		must(t, os.Mkdir(bin, 0o755))
		pkgs := strings.Fields(run(t, tree, "go", "list", "-e", "./fs/fid/...", "./fs/extent/...", "./fs/layout/..."))
		run(t, tree, append([]string{"go", "build"}, "./...")...)
		run(t, tree, append([]string{"go", "test", "-count=1"}, pkgs...)...)
		clean(t, tree)
		git(t, tree, "gc", "-q", "--prune=now")
		git(t, tree, "fsck", "--full", "--strict")
		clean(t, tree)
	})
}

// TestSmallModuleBuildsAndTests builds a module with no imports beside the standard library on the mount.
func TestSmallModuleBuildsAndTests(t *testing.T) {
	need(t, "go")
	judged(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		files := map[string]string{
			"go.mod":         "module example.org/small\n\ngo 1.25\n",
			"main.go":        "package main\n\nimport (\n\t\"fmt\"\n\n\t\"example.org/small/sum\"\n)\n\nfunc main() { fmt.Println(sum.Of(1, 2, 3)) }\n",
			"sum/sum.go":     "package sum\n\nfunc Of(n ...int) (s int) {\n\tfor _, v := range n {\n\t\ts += v\n\t}\n\treturn s\n}\n",
			"sum/of_test.go": "package sum\n\nimport \"testing\"\n\nfunc TestOf(t *testing.T) {\n\tif Of(1, 2) != 3 {\n\t\tt.Fatal(\"wrong\")\n\t}\n}\n",
		}
		for name, text := range files {
			must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
			must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
		}
		cache := filepath.Join(dir, "cache") // the build cache and the linker's output on the mount as well
		run(t, dir, "env", "GOFLAGS=", "GOCACHE="+cache, "GOTMPDIR="+dir, "go", "build", "-o", "small", ".")
		if got := run(t, dir, "./small"); got != "6\n" {
			t.Fatalf("the program built there prints %q", got)
		}
		run(t, dir, "env", "GOFLAGS=", "GOCACHE="+cache, "GOTMPDIR="+dir, "go", "test", "./...")
	})
}

func clean(t testing.TB, tree string) {
	t.Helper()
	if out := git(t, tree, "status", "--porcelain"); out != "" {
		t.Fatalf("git status is not clean:\n%.2000s", out)
	}
}

// TestGitKeepsPacksWhole (case 21): the pack writer mixes pwrite, pread and mmap on one file; clone, fsck, checkout of
// another branch, gc and a worktree of a repository with large packs stay without fault.
func TestGitKeepsPacksWhole(t *testing.T) {
	need(t, "git")
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		src := filepath.Join(dir, "src")
		must(t, os.Mkdir(src, 0o755))
		git(t, src, "init", "-q")
		rng := rand.New(rand.NewPCG(seed(t), 21))
		fill(t, src, rng, size(12, 120), 1<<20)
		git(t, src, "add", ".")
		git(t, src, "commit", "-qm", "one")
		git(t, src, "checkout", "-qb", "other")
		fill(t, src, rng, size(3, 20), 1<<20)
		git(t, src, "add", ".")
		git(t, src, "commit", "-qm", "two")
		git(t, src, "commit", "-q", "--amend", "-m", "2") // a shorter message over a longer one
		git(t, src, "checkout", "-q", "main")

		git(t, dir, "clone", "-q", "file://"+src, "copy")
		tree := filepath.Join(dir, "copy")
		git(t, tree, "fsck", "--full", "--strict")
		git(t, tree, "checkout", "-q", "other")
		git(t, tree, "gc", "-q", "--prune=now")
		git(t, tree, "worktree", "add", "-q", filepath.Join(dir, "work"), "main")
		clean(t, tree)
		clean(t, filepath.Join(dir, "work"))
		git(t, tree, "fsck", "--full", "--strict")
		same(t, src, filepath.Join(dir, "work"))
	})
}

// fill writes count files of length bytes, half of each random and half text, in ten folders.
func fill(t testing.TB, dir string, rng *rand.Rand, count, length int) {
	t.Helper()
	for i := range count {
		b := make([]byte, length/2, length)
		for j := range b {
			b[j] = byte(rng.Uint32())
		}
		b = append(b, bytes.Repeat([]byte("a line of text\n"), length/2/15)...)
		sub := filepath.Join(dir, "d"+string(rune('0'+i%10)))
		must(t, os.MkdirAll(sub, 0o755))
		must(t, os.WriteFile(filepath.Join(sub, "f"+string(rune('a'+rng.IntN(26)))+string(rune('a'+rng.IntN(26)))), b, 0o644))
	}
}

// same compares two trees without their .git.
func same(t testing.TB, a, b string) {
	t.Helper()
	run(t, "", "diff", "-r", "-x", ".git", a, b)
}
