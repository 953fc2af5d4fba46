package mgs

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Bounds of permanent parameters. With targetsMax they keep a configuration under one frame.
const (
	paramsMax     = 200
	paramNameMax  = 128
	paramValueMax = 256
)

// SetParam makes a permanent parameter, as `lctl set_param -P` does: every process applies it when it hears of the new
// configuration, and at each start. name is a path of package stats, wildcards included; an empty value removes it. It
// returns when the parameter is on disk. Errors: status.Invalid for a name or value that is empty, too long or no text, and
// for a name that is no pattern; status.NoSpace for one parameter too many.
func (m *MGS) SetParam(ctx context.Context, e *env.Env, name, value string) error {
	if !isParamText(name, paramNameMax) || name == "" || !isParamText(value, paramValueMax) {
		return status.Errorf(status.Invalid, "mgs: a permanent parameter has a name of 1 to %d and a value of at most %d printable bytes",
			paramNameMax, paramValueMax)
	}
	if err := stats.CheckPattern(name); err != nil {
		return status.Errorf(status.Invalid, "%v", err)
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return status.Stopping
	}
	params, changed := withParam(m.params, name, value)
	if !changed {
		m.mu.Unlock()
		return nil
	}
	if len(params) > paramsMax {
		m.mu.Unlock()
		return status.Errorf(status.NoSpace, "mgs: %d permanent parameters are the most there can be", paramsMax)
	}
	key := append([]byte{'p'}, name...)
	tx := m.o.KV.Begin(e)
	if value == "" {
		tx.Delete(m.o.Table, key)
	} else {
		tx.Put(m.o.Table, key, []byte(value))
	}
	n, err := m.o.KV.Publish(tx)
	if err != nil {
		m.mu.Unlock()
		return err
	}
	m.params = params
	m.mu.Unlock()
	if err := m.o.KV.WaitCommitted(ctx, n); err != nil {
		return err
	}
	m.mu.Lock()
	m.version++
	m.wakeLocked(nil)
	m.mu.Unlock()
	return nil
}

func isParamText(s string, limit int) bool {
	return len(s) <= limit && !bytes.ContainsFunc([]byte(s), func(r rune) bool { return r < ' ' || r == 0x7f })
}

// withParam returns a copy of params, which are in order of name, with one changed. Views that were given out keep theirs.
func withParam(params []*wirepb.Param, name, value string) ([]*wirepb.Param, bool) {
	i, found := slices.BinarySearchFunc(params, name, func(p *wirepb.Param, name string) int {
		return bytes.Compare(p.Name, []byte(name))
	})
	p := &wirepb.Param{Name: []byte(name), Value: []byte(value)}
	params = slices.Clone(params)
	switch {
	case found && string(params[i].Value) == value, !found && value == "":
		return params, false
	case found && value == "":
		return slices.Delete(params, i, i+1), true
	case found:
		params[i] = p
		return params, true
	}
	return slices.Insert(params, i, p), true
}

// Params are the permanent parameters in order of name.
func (m *MGS) Params() []stats.Setting {
	m.mu.Lock()
	params := m.params
	m.mu.Unlock()
	out := make([]stats.Setting, len(params))
	for i, p := range params {
		out[i] = stats.Setting{Pattern: string(p.Name), Value: string(p.Value)}
	}
	return out
}

// Register enters what the MGS knows under the names of Lustre's: mgs.MGS.live.<fsname>, the targets, and
// mgs.MGS.live.params, the permanent parameters.
func (m *MGS) Register(r *stats.Registry) {
	r.Text("mgs.MGS.live."+stats.Element(m.o.FSName), "The file system's targets with state and server.", m.liveText)
	r.Text("mgs.MGS.live.params", "The permanent parameters.", func() string {
		var lines []string
		for _, s := range m.Params() {
			lines = append(lines, s.Pattern+"="+s.Value)
		}
		return strings.Join(lines, "\n")
	})
}

func (m *MGS) liveText() string {
	m.mu.Lock()
	v := m.viewLocked()
	m.mu.Unlock()
	lines := []string{
		"fsname: " + m.o.FSName,
		"uuid: " + uuidText(v.FsUuid),
		fmt.Sprintf("gen: %d", v.Version),
	}
	for _, t := range v.Targets {
		lines = append(lines, fmt.Sprintf("%s %s %s", t.Name, t.State, t.Server))
	}
	return strings.Join(lines, "\n")
}
