package dash

import (
	"strings"
	"time"

	"github.com/strakefs/strake/fs/stats"
)

// hostView is the JSON of /api/v1/host and of each tick: the registry's "host." and
// "process." figures, arranged. Figures not measured are left out.
type hostView struct {
	AtMs    int64             `json:"atMs"`
	Names   map[string]string `json:"names"`   // name, os, kernel, …
	Figures map[string]int64  `json:"figures"` // "memory_total_bytes" -> 25174405120
	Process map[string]int64  `json:"process"` // "goroutines" -> 12
	// Devices by what they are ("disk", "net", "data", "cpu"), then by name, then by
	// figure: {"disk":{"vda":{"read_bytes":…}}}.
	Devices map[string]map[string]map[string]int64 `json:"devices"`
}

// readHost arranges the host's and the process's figures.
func readHost(r *stats.Registry, now time.Time) hostView {
	v := hostView{AtMs: now.UnixMilli(), Names: map[string]string{}, Figures: map[string]int64{},
		Process: map[string]int64{}, Devices: map[string]map[string]map[string]int64{}}
	// The visitor returns no error and the pattern is valid.
	_ = r.Walk("{host,process}.**", func(e stats.Entry) error {
		elements := strings.Split(e.Path, ".")
		n, isNumber := e.Value()
		switch {
		case !isNumber && e.Kind == stats.KindText && len(elements) == 2:
			v.Names[elements[1]] = e.Text()
		case !isNumber:
		case elements[0] == "process" && len(elements) == 2:
			v.Process[elements[1]] = n
		case len(elements) == 2:
			v.Figures[elements[1]] = n
		case len(elements) == 4:
			v.addDevice(elements[1], deviceName(&e, elements[2]), elements[3], n)
		}
		return nil
	})
	return v
}

// deviceName is the only label's value, which is the name before it was made an element.
func deviceName(e *stats.Entry, element string) string {
	if len(e.Labels) == 1 {
		return e.Labels[0].Value
	}
	return element
}

func (v *hostView) addDevice(class, name, figure string, n int64) {
	if v.Devices[class] == nil {
		v.Devices[class] = map[string]map[string]int64{}
	}
	if v.Devices[class][name] == nil {
		v.Devices[class][name] = map[string]int64{}
	}
	v.Devices[class][name][figure] = n
}
