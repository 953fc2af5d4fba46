package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/strakefs/strake/server/config"
)

// mountHelperName is the link that mount(8) looks for with -t strake.
const mountHelperName = "mount.strake"

// helperSlack is how much longer than its own waiting for the MGS a client may take to come up.
const helperSlack = 60 * time.Second

const helperUsage = "usage: mount.strake HOST[:PORT][,HOST[:PORT]]:/FSNAME[/FOLDER] DIR [-sfnv] [-o OPT[,OPT]]"

// helperCall is what mount(8) asks of the helper.
type helperCall struct {
	mgs, fsname, fileset string
	dir                  string
	options              []string
	fake                 bool
}

// mountHelper does what mount -t strake SPEC DIR does: it starts a client in the background, waits until the mount is
// up and returns; the client stays until DIR is unmounted or it gets SIGTERM. Keys of the configuration that belong to a
// client can stand among the options, since fstab has no other place: insecure, log-level, mgs-timeout, http, config.
func mountHelper(deps Deps, args []string) error {
	call, err := parseHelper(args)
	if err != nil {
		return err
	}
	flags, err := call.flags()
	if err != nil {
		return err
	}
	cfg, err := helperConfig(deps.Environ, flags)
	if err != nil {
		return err
	}
	if call.fake {
		return nil
	}
	return startClient(deps, cfg, flags)
}

// parseHelper reads the arguments in the order mount(8) gives them, flags last.
func parseHelper(args []string) (helperCall, error) {
	var c helperCall
	var words []string
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "-o" || arg == "-t" || arg == "-N":
			if i++; i == len(args) {
				return c, usageError{fmt.Errorf("%s needs a value; %s", arg, helperUsage)}
			}
			if arg == "-o" {
				c.options = append(c.options, strings.Split(args[i], ",")...)
			}
		case strings.HasPrefix(arg, "-o"):
			c.options = append(c.options, strings.Split(arg[2:], ",")...)
		case len(arg) > 1 && arg[0] == '-' && strings.Trim(arg[1:], "sfnvw") == "":
			c.fake = c.fake || strings.Contains(arg, "f")
		case arg == "-r":
			c.options = append(c.options, "ro")
		case strings.HasPrefix(arg, "-"):
			return c, usageError{fmt.Errorf("unknown flag %q; %s", arg, helperUsage)}
		default:
			words = append(words, arg)
		}
	}
	if len(words) != 2 {
		return c, usageError{errors.New(helperUsage)}
	}
	spec, rest, ok := strings.Cut(words[0], ":/")
	if !ok || spec == "" || rest == "" {
		return c, usageError{fmt.Errorf("%q names no file system; %s", words[0], helperUsage)}
	}
	c.mgs, c.dir = spec, words[1]
	c.fsname, c.fileset, _ = strings.Cut(rest, "/")
	return c, nil
}

// flags turns the call into the command line of the client, without the binary's name.
func (c helperCall) flags() ([]string, error) {
	dir, err := filepath.Abs(c.dir)
	if err != nil {
		return nil, fmt.Errorf("mount point %s: %w", c.dir, err)
	}
	flags := []string{"--role=client", "--mgs=" + c.mgs, "--fsname=" + c.fsname, "--mount=" + dir}
	var opts []string
	ownFile := false
	for _, o := range c.options {
		name, _, _ := strings.Cut(o, "=")
		ownFile = ownFile || name == config.KeyConfig
		switch name {
		case config.KeyInsecure, config.KeyLogLevel, config.KeyMGSTimeout, config.KeyHTTP, config.KeyConfig:
			flags = append(flags, "--"+o)
		default:
			opts = append(opts, o)
		}
	}
	if !ownFile {
		// The default file describes this host's servers, if it has any.
		flags = append(flags, "--config="+config.NoFile)
	}
	if c.fileset != "" {
		opts = append(opts, "fileset=/"+c.fileset)
	}
	return append(flags, "-o", strings.Join(opts, ",")), nil
}

// helperConfig checks the client's command line here, where the message still reaches the caller of mount(8).
func helperConfig(environ, flags []string) (config.Config, error) {
	var cfg config.Config
	probe := newRoot(Deps{Environ: environ})
	probe.RunE = nil
	if err := probe.ParseFlags(flags); err != nil {
		return cfg, usageError{err}
	}
	values := map[string]*flagValue{}
	for _, k := range config.Keys() {
		values[k.Name] = probe.Flags().Lookup(k.Name).Value.(*flagValue)
	}
	return load(environ, flagSettings(probe, values))
}

// startClient starts the client in a session of its own and waits until it is up or has failed.
func startClient(deps Deps, cfg config.Config, flags []string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("own binary: %w", err)
	}
	tmp, err := os.MkdirTemp("", "strake-mount-")
	if err != nil {
		return fmt.Errorf("folder for the ready socket: %w", err)
	}
	defer os.RemoveAll(tmp)
	socket := &net.UnixAddr{Name: filepath.Join(tmp, "ready"), Net: "unixgram"}
	ready, err := net.ListenUnixgram("unixgram", socket)
	if err != nil {
		return fmt.Errorf("ready socket: %w", err)
	}
	defer ready.Close()
	logFile, err := openClientLog(cfg.Mounts[0].Dir)
	if err != nil {
		return err
	}
	defer logFile.Close()

	cmd := exec.Command(self, flags...)
	cmd.Args[0] = "strake"
	cmd.Env = append(deps.Environ, notifyEnv+"="+socket.Name)
	cmd.Dir = "/"
	cmd.Stderr, cmd.Stdout = logFile, logFile
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	start, err := logFile.Seek(0, 2)
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start of the client: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), cfg.MGSTimeout+helperSlack)
	defer cancel()
	return awaitClient(ctx, cmd, ready, logFile, start)
}

// awaitClient waits for the client's word, its end, or the limit.
func awaitClient(ctx context.Context, cmd *exec.Cmd, ready *net.UnixConn, logFile *os.File, start int64) error {
	up, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		buf := make([]byte, 256)
		for {
			n, err := ready.Read(buf)
			if err != nil {
				return
			}
			if strings.Contains(string(buf[:n]), readyMessage) {
				close(up)
				return
			}
		}
	}()
	go func() { ended <- cmd.Wait() }()
	select {
	case <-up:
		return nil
	case err := <-ended:
		if line := lastLine(logFile, start); line != "" {
			return errors.New(strings.TrimPrefix(line, "strake: "))
		}
		return fmt.Errorf("the client ended: %w; see %s", err, logFile.Name())
	case <-ctx.Done():
		// The only process this can be is the one started above: it has not been waited for yet.
		_ = cmd.Process.Signal(syscall.SIGTERM)
		return fmt.Errorf("the mount is not up after waiting for it; see %s", logFile.Name())
	}
}

// openClientLog opens the log of the client of one mount point, /var/log/strake-mnt-data.log for /mnt/data.
func openClientLog(dir string) (*os.File, error) {
	name := "strake" + strings.ReplaceAll(filepath.Clean("/"+dir), "/", "-") + ".log"
	f, err := os.OpenFile(filepath.Join("/var/log", name), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o640)
	if err != nil {
		return nil, fmt.Errorf("log of the client: %w", err)
	}
	return f, nil
}

// lastLine returns the last line written after start, from the last 4 KiB.
func lastLine(f *os.File, start int64) string {
	const tailBytes = 4096
	end, err := f.Seek(0, 2)
	if err != nil || end <= start {
		return ""
	}
	start = max(start, end-tailBytes)
	buf := make([]byte, end-start)
	n, _ := f.ReadAt(buf, start)
	lines := strings.Split(strings.TrimSpace(string(buf[:n])), "\n")
	return lines[len(lines)-1]
}
