package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// jsonVersion changes when a field of the JSON changes its meaning or goes.
const jsonVersion = 1

// object is what -o json prints, with the version.
type object map[string]any

// print prints data: as JSON, one object a line, or as text.
func (a *app) print(data object, text func() string) error {
	var out string
	if a.output == "json" {
		data["version"] = jsonVersion
		var b strings.Builder
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(data); err != nil {
			return fmt.Errorf("write the JSON: %w", err)
		}
		out = cleanJSON(b.String())
	} else {
		out = text()
	}
	if _, err := fmt.Fprint(a.out, out); err != nil {
		return fmt.Errorf("write to stdout: %w", err)
	}
	return nil
}

// say says something to people.
func (a *app) say(format string, args ...any) {
	for line := range strings.Lines(fmt.Sprintf(format, args...)) {
		fmt.Fprintln(a.talk, clean(strings.TrimRight(line, "\n")))
	}
}

// listed is a list that JSON shows as [] if it is empty.
func listed[T, V any](all []T, view func(T) V) []V {
	views := make([]V, 0, len(all))
	for _, one := range all {
		views = append(views, view(one))
	}
	return views
}

func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }

// facts prints names and values below each other.
type facts struct{ strings.Builder }

const factsWide = 13 // before a value

func (f *facts) add(name, format string, args ...any) {
	fmt.Fprintf(&f.Builder, "%-*s%s\n", factsWide, name, clean(fmt.Sprintf(format, args...)))
}
