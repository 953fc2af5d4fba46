// Command strake is a parallel file system in one binary: every role of the cluster, the mount, and the tools.
package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/strakefs/strake/server"
	"github.com/strakefs/strake/server/config"
	"github.com/strakefs/strake/ui/bench"
	"github.com/strakefs/strake/ui/check"
	"github.com/strakefs/strake/ui/cli"
	"github.com/strakefs/strake/ui/lctl"
	"github.com/strakefs/strake/ui/lfs"
	"github.com/strakefs/strake/ui/process"
)

// version is set by the linker (make build).
var version string

func main() {
	os.Exit(cli.Main(cli.Deps{
		Args:    os.Args,
		Environ: os.Environ(),
		Stdin:   os.Stdin,
		Stdout:  os.Stdout,
		Stderr:  os.Stderr,
		Version: version,
		Start:   start,
		Tools:   tools(),
	}))
}

// tools are the commands beside the node's.
func tools() []*cobra.Command {
	return []*cobra.Command{lfs.NewCommand(), lctl.NewCommand(cli.BuildVersion(version)), bench.NewCommand(), check.NewCommand(), check.NewDumpCommand(),
		cli.NewRestore(cli.Restorer{Check: checkBackup, Restore: restore})}
}

// start starts what cfg asks for in this process.
func start(ctx context.Context, cfg config.Config, log *slog.Logger) (cli.Node, error) {
	return process.Start(ctx, cfg, version, log)
}

// checkBackup and restore are what the restore command does.
func checkBackup(file string) (cli.Backup, error) {
	b, err := server.CheckBackup(file)
	return backupOf(&b), err
}

func restore(file, dir string) (cli.Backup, error) {
	b, err := server.Restore(file, dir)
	return backupOf(&b), err
}

func backupOf(b *server.Backup) cli.Backup {
	return cli.Backup{Target: b.Target, FSName: b.Label.FSName, UUID: b.Label.UUID, Instance: b.Instance, Transno: uint64(b.Transno),
		Keys: b.Keys, Bytes: b.Bytes, Made: b.Made}
}
