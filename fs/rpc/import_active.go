package rpc

import (
	"fmt"
	"strings"

	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
)

// errInactive ends the requests of an import that an administrator has switched off.
var errInactive error = &status.Error{Kind: status.IO, Text: "rpc: the target is deactivated here: lctl activate brings it back"}

// SetActive switches the import off or on again. Off, requests fail at once with status.IO, those in flight too; what gives
// something back (wire.Op.Prior) is still sent while there is a connection, which stays, and with it the export and its locks.
func (i *Import) SetActive(on bool) {
	if i.inactive.Swap(!on) == !on {
		return
	}
	if on {
		i.log.Info("activated")
		return
	}
	i.log.Warn("deactivated: requests fail until it is activated")
	// What is in flight is lost with the connection, finds the import off, and fails. The driver connects anew.
	if ls := i.full.Load(); ls != nil {
		ls.close(errInactive)
	}
	i.mu.Lock()
	i.changedLocked()
	i.mu.Unlock()
}

// Active reports whether the import is not switched off.
func (i *Import) Active() bool { return !i.inactive.Load() }

// off is the error of a request that an import that is switched off does not send.
func (i *Import) off(op wire.Op, connected bool) error {
	if !i.inactive.Load() || op == wire.OpConnect || op == wire.OpDisconnect || op.Prior() && connected {
		return nil
	}
	return errInactive
}

// registerSwitches enters what an administrator can do to the import.
func (i *Import) registerSwitches(path string) {
	i.o.Stats.Param(path+".active", "1, or 0 when requests to the target fail at once.", func() string {
		if i.Active() {
			return "1"
		}
		return "0"
	}, func(text string) error {
		on, err := ParseSwitch(text)
		if err == nil {
			i.SetActive(on)
		}
		return err
	})
	i.o.Stats.Param(path+".recover", "Set to 1 it drops the connection and connects anew, at once.", func() string { return "" },
		func(text string) error {
			on, err := ParseSwitch(text)
			if err == nil && on {
				i.Reconnect()
			}
			return err
		})
}

// ParseSwitch reads the value of a parameter that is 0 or 1.
func ParseSwitch(text string) (on bool, err error) {
	switch strings.TrimSpace(text) {
	case "0":
		return false, nil
	case "1":
		return true, nil
	}
	return false, fmt.Errorf("%w: it is 0 or 1, not %q", status.Invalid, text)
}
