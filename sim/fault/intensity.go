package fault

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// most bounds an intensity.
const most = 10

// All returns the usual intensity of every fault. An intensity says how much of a
// fault a run does: 0 is none, 1 the usual, 2 twice as much.
func (t Table) All() map[string]float64 {
	all := map[string]float64{}
	for _, r := range t {
		all[r.Name] = 1
	}
	return all
}

// Parse reads what Format prints: "crash=1,cut=0.5", "all", or "none".
func (t Table) Parse(s string) (map[string]float64, error) {
	switch s {
	case "all":
		return t.All(), nil
	case "none":
		return map[string]float64{}, nil
	}
	chosen := map[string]float64{}
	for part := range strings.SplitSeq(s, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if names := t.Names(); !slices.Contains(names, name) {
			return nil, fmt.Errorf("-faults: there is no fault %q; there are: %s", name, strings.Join(names, ", "))
		}
		intensity, err := strconv.ParseFloat(value, 64)
		if err != nil || !(intensity >= 0 && intensity <= most) {
			return nil, fmt.Errorf("-faults: the intensity of %s is %q, it is to be a number from 0 to %d, as in %s=1", name, value, most, name)
		}
		chosen[name] = intensity
	}
	return chosen, nil
}

// Format prints intensities for -faults, in the order of the table.
func (t Table) Format(chosen map[string]float64) string {
	if maps.Equal(chosen, t.All()) {
		return "all"
	}
	var on []string
	for _, name := range t.Names() {
		if chosen[name] > 0 {
			on = append(on, name+"="+strconv.FormatFloat(chosen[name], 'g', -1, 64))
		}
	}
	if len(on) == 0 {
		return "none"
	}
	return strings.Join(on, ",")
}
