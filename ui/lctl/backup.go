package lctl

import (
	"context"
	"fmt"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/ui/param"
)

// lookEvery is how often a verb that waits asks how far the process is.
const lookEvery = 100 * time.Millisecond

// newBackup makes the verb that backs an MDT up.
func newBackup(h *host) *cobra.Command {
	return &cobra.Command{
		Use: "backup TARGET FILE", Short: "write a metadata target to a file while it runs",
		Long: `backup writes the metadata target TARGET, which runs on this host, to FILE: one state of it, with everything up to one transaction and
nothing after, while operations go on. The file gets its name when it is whole and on disk; an older backup of that name is
replaced. Ended with Ctrl-C it leaves nothing. strake restore makes a data folder of it again; read there what a backup
that is older than the OSTs means.`,
		Example: "  lctl backup strake-MDT0000 /backup/mdt0-$(date +%F)",
		RunE: run(h, func(s *session, args []string) error {
			if len(args) != 2 {
				return usagef("a target and a file are needed; see lctl backup --help")
			}
			file, err := filepath.Abs(args[1])
			if err != nil {
				return err
			}
			return s.backup(args[0], file)
		}),
	}
}

// owner is the one process of this host that has a parameter.
func (s *session) owner(name, target string) (*param.Process, error) {
	var found *param.Process
	for _, p := range s.procs {
		nodes, err := p.List(name, false)
		if err != nil {
			return nil, err
		}
		switch {
		case len(nodes) == 0:
		case found != nil || len(nodes) > 1:
			return nil, usagef("several processes or targets match %s: name one, or choose with --fsname or --sock", target)
		default:
			found = p
		}
	}
	if found == nil {
		return nil, status.Errorf(status.NoDevice, "no process of this host serves a metadata target %s", target)
	}
	return found, nil
}

// setOne sets a parameter of a process and returns why it did not take it.
func setOne(p *param.Process, name, value string) error {
	nodes, err := p.Set(name, value)
	if err == nil && len(nodes) > 0 {
		err = nodes[0].Err
	}
	return err
}

// value asks a process for a parameter.
func value(p *param.Process, name string) (string, error) {
	nodes, err := p.Get(name, false)
	if err != nil || len(nodes) == 0 {
		return "", err
	}
	return nodes[0].Text, nil
}

func (s *session) backup(target, file string) error {
	name := "mdt." + target + ".backup"
	p, err := s.owner(name, target)
	if err != nil {
		return err
	}
	if err := setOne(p, name, file); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		text, err := value(p, name)
		if err != nil {
			return err
		}
		switch state := valueIn(text, "state"); {
		case state == "complete":
			s.printf("%s: %s bytes in %s s, transno %s: %s\n", target, valueIn(text, "bytes"), valueIn(text, "seconds"), valueIn(text, "transno"), printable(file))
			return nil
		case state != "running":
			return fmt.Errorf("%s", rest(text, "error"))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return setOne(p, name, "cancel")
		}
	}
}

// rest is everything from a key's value on.
func rest(text, key string) string {
	_, after, ok := strings.Cut("\n"+text, "\n"+key+": ")
	if !ok {
		return "the process does not say what became of it"
	}
	return after
}

// newRestored makes the verb that settles what a restore has left open.
func newRestored(h *host) *cobra.Command {
	var destroy, keep bool
	c := &cobra.Command{
		Use: "restored TARGET [--destroy-orphans|--keep-orphans]", Short: "show or settle what is kept since a metadata target was restored",
		Long: `restored shows which objects the OSTs keep since the metadata target TARGET was restored from a backup: those that were made after the
backup, which belong to files that the target does not know any more. They are kept until one of the flags says what shall
be: --destroy-orphans has them destroyed, --keep-orphans leaves them where they are, taking space, for a check to find. With
nothing to settle it prints nothing.`,
		Example: "  lctl restored strake-MDT0000\n  lctl restored strake-MDT0000 --destroy-orphans",
		RunE: run(h, func(s *session, args []string) error {
			if len(args) != 1 {
				return usagef("one target is needed; see lctl restored --help")
			}
			name := "mdt." + args[0] + ".restored"
			p, err := s.owner(name, args[0])
			if err != nil {
				return err
			}
			switch {
			case destroy:
				err = setOne(p, name, "destroy")
			case keep:
				err = setOne(p, name, "keep")
			}
			if err != nil {
				return err
			}
			return s.restored(p, name, destroy || keep)
		}),
	}
	c.Flags().BoolVar(&destroy, "destroy-orphans", false, "destroy the objects that are kept")
	c.Flags().BoolVar(&keep, "keep-orphans", false, "leave them, and forget about them")
	c.MarkFlagsMutuallyExclusive("destroy-orphans", "keep-orphans")
	return c
}

// restored prints what is kept, or with wait waits until it is settled.
func (s *session) restored(p *param.Process, name string, wait bool) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		text, err := value(p, name)
		switch {
		case err != nil:
			return err
		case text == "":
			return nil
		case !wait:
			s.printf("%s\n", printable(text))
			return nil
		case valueIn(text, "state") != "settling":
			return fmt.Errorf("%s", rest(text, "error"))
		}
		<-tick.C
	}
}
