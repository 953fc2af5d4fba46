package forgetfs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// helperEnv makes a test binary serve a disk: the backing folder, the mount point and the control socket, a line each.
const helperEnv = "STRAKE_TEST_FORGETFS"

// Helper serves a disk if the process was started for that by Start, until its standard input ends, and reports whether
// it was. A test binary calls it first in TestMain, and leaves when it returns true.
func Helper() bool {
	spec := os.Getenv(helperEnv)
	if spec == "" {
		return false
	}
	parts := strings.Split(spec, "\n")
	if len(parts) != 3 {
		fmt.Fprintf(os.Stderr, "forgetfs: %s=%q\n", helperEnv, spec)
		os.Exit(2)
	}
	s := &server{backing: parts[0], dir: parts[1]}
	if err := s.serve(parts[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

// server is one disk.
type server struct {
	backing, dir string

	mu   sync.Mutex   // held over a command
	im   *image       // guarded by mu
	fuse *fuse.Server // guarded by mu
}

// serve mounts, tells so on the standard output, and obeys the control socket until the standard input ends.
func (s *server) serve(socket string) error {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("forgetfs: %w", err)
	}
	defer l.Close()
	if err := s.mount(); err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go s.control(c)
		}
	}()
	fmt.Println("mounted")
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.mu.Lock()
	defer s.mu.Unlock()
	return unix.Unmount(s.dir, unix.MNT_DETACH)
}

// mount shows a new image of the backing folder.
func (s *server) mount() error {
	im, err := load(s.backing)
	if err != nil {
		return err
	}
	s.im = im
	s.fuse, err = fuse.NewServer(im, s.dir, &fuse.MountOptions{
		MaxWrite: 1 << 20, MaxBackground: 64, Name: "forgetfs", FsName: s.backing, DirectMountStrict: true,
		DirectMountFlags: unix.MS_NOSUID | unix.MS_NODEV, AllowOther: true, Options: []string{"default_permissions"},
		ExplicitDataCacheControl: true, DisableReadDirPlus: true, Logger: log.New(io.Discard, "", 0),
	})
	if err != nil {
		return fmt.Errorf("forgetfs: mount %s: %w", s.dir, err)
	}
	go s.fuse.Serve()
	return s.fuse.WaitMount()
}

// control obeys one connection: a command a line, an answer a line, which begins with "ok" or "error".
func (s *server) control(c net.Conn) {
	defer c.Close()
	for lines := bufio.NewScanner(c); lines.Scan(); {
		s.mu.Lock()
		answer, err := s.obey(strings.Fields(lines.Text()))
		s.mu.Unlock()
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", " ")
		} else {
			answer = strings.TrimSpace("ok " + answer)
		}
		if _, err := fmt.Fprintln(c, answer); err != nil {
			return
		}
	}
}

// obey runs one command.
func (s *server) obey(words []string) (string, error) {
	var numbers []int64
	for _, w := range words {
		n, _ := strconv.ParseInt(w, 10, 64)
		numbers = append(numbers, n)
	}
	switch strings.Join(words[:min(len(words), 1)], "") + "/" + strconv.Itoa(len(words)) {
	case "off/1":
		s.im.mu.Lock()
		defer s.im.mu.Unlock()
		s.im.dead = true
		return "", nil
	case "forget/1":
		return "", s.cut(func(*image) error { return nil })
	case "tear/3":
		if numbers[2] < 1 || pageBytes%numbers[2] != 0 {
			return "", fmt.Errorf("no grain %s", words[2])
		}
		rnd := rand.New(rand.NewPCG(uint64(numbers[1]), 0))
		return "", s.cut(func(im *image) error { return im.tear(rnd, int(numbers[2])) })
	case "room/2":
		return "", s.with(func(im *image) { im.room = numbers[1] })
	case "fail/5":
		return "", s.with(func(im *image) {
			im.faults = append(im.faults, fault{words[1], strings.TrimPrefix(words[2], "*"), int(numbers[3]), int(numbers[4])})
		})
	case "offat/3":
		return "", s.with(func(im *image) {
			im.faults = append(im.faults, fault{"off", strings.TrimPrefix(words[1], "*"), 0, int(numbers[2])})
		})
	case "heal/1":
		return "", s.with(func(im *image) { im.faults, im.room = nil, -1 })
	case "sync/1":
		s.im.mu.Lock()
		defer s.im.mu.Unlock()
		return "", s.im.flushAll()
	case "pending/1":
		var text string
		err := s.with(func(im *image) { text = im.describe() })
		return text, err
	}
	return "", fmt.Errorf("no command %q", strings.Join(words, " "))
}

func (s *server) with(f func(*image)) error {
	s.im.mu.Lock()
	defer s.im.mu.Unlock()
	f(s.im)
	return nil
}

// cut is a loss of power: the old mount fails from now on, the backing folder keeps what keep puts there, and a new mount
// takes the old one's place.
func (s *server) cut(keep func(*image) error) error {
	s.im.mu.Lock()
	s.im.dead = true
	err := keep(s.im)
	s.im.mu.Unlock()
	return errors.Join(err, unix.Unmount(s.dir, unix.MNT_DETACH), s.mount())
}

// describe counts what is pending: changes of names, files, pages; and the flushes since the last cut.
func (im *image) describe() string {
	changes, files, pages := 0, 0, 0
	for _, c := range im.pending {
		if !c.done {
			changes++
		}
	}
	for _, n := range im.nodes {
		if n.mode&unix.S_IFMT == unix.S_IFREG && n.nlink > 0 && !n.clean() {
			files++
		}
		pages += len(n.pages)
	}
	return fmt.Sprintf("%d %d %d %d", changes, files, pages, im.syncs)
}
