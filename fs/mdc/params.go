package mdc

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/strakefs/strake/fs/stats"
)

// register enters the parameters under Lustre's names below at, such as "mdc.strake-MDT0000-mdc.".
func (m *MDC) register(reg *stats.Registry, at string) {
	for _, p := range []struct {
		name, help string
		get        func(reads, mods int) int
		set        func(n int)
	}{
		{"max_rpcs_in_flight", "Requests in flight that change nothing; the server may allow less.",
			func(reads, _ int) int { return reads }, func(n int) { m.imp.SetInFlight(n, 0) }},
		{"max_mod_rpcs_in_flight", "Requests in flight that change something; the server may allow less.",
			func(_, mods int) int { return mods }, func(n int) { m.imp.SetInFlight(0, n) }},
	} {
		reg.Param(at+p.name, p.help, func() string { return strconv.Itoa(p.get(m.imp.InFlight())) }, func(text string) error {
			n, err := strconv.Atoi(strings.TrimSpace(text))
			if most := m.imp.InFlightMost(); err != nil || n < 1 || n > most {
				return fmt.Errorf("mdc: %s is a number from 1 to %d, not %q", p.name, most, text)
			}
			p.set(n)
			return nil
		})
	}
}
