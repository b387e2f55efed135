// Package intensity reads and prints how much of which kinds of faults a run
// does: by name, 0 is none, 1 the usual, 2 twice as much.
package intensity

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// most bounds an intensity.
const most = 10

// All is as much as usual of every kind.
func All(names []string) map[string]float64 {
	all := map[string]float64{}
	for _, name := range names {
		all[name] = 1
	}
	return all
}

// Parse reads what Format prints: "crash=1,cut=0.5", "all", or "none".
func Parse(s string, names []string) (map[string]float64, error) {
	switch s {
	case "all":
		return All(names), nil
	case "none":
		return map[string]float64{}, nil
	}
	chosen := map[string]float64{}
	for part := range strings.SplitSeq(s, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if !slices.Contains(names, name) {
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

// Format prints intensities for -faults, in the order of names.
func Format(chosen map[string]float64, names []string) string {
	if maps.Equal(chosen, All(names)) {
		return "all"
	}
	var on []string
	for _, name := range names {
		if chosen[name] > 0 {
			on = append(on, name+"="+strconv.FormatFloat(chosen[name], 'g', -1, 64))
		}
	}
	if len(on) == 0 {
		return "none"
	}
	return strings.Join(on, ",")
}
