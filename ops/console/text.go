package console

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// known reports whether there is a worker of this ID.
func known(id [16]byte) bool { return id != [16]byte{} }

// shortID is the beginning of an ID.
func shortID(id [16]byte) string { return hex.EncodeToString(id[:4]) }

// thousands writes a number with separators.
func thousands[T int | int64](n T) string {
	s := strconv.FormatInt(int64(n), 10)
	sign := ""
	if n < 0 {
		sign, s = "−", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// age rounds a duration, so that a reader can compare it.
func age(d time.Duration) string {
	switch {
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < 2*time.Minute:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	case d < 2*time.Hour:
		return strconv.Itoa(int(d.Minutes())) + " min"
	case d < 48*time.Hour:
		return strconv.FormatFloat(d.Hours(), 'f', 1, 64) + " h"
	}
	return strconv.Itoa(int(d.Hours()/24)) + " days"
}

// maxShown bounds the bytes of a value on a page of its own, maxError the bytes of a value in a
// list.
const (
	maxShown = 64 << 10
	maxError = 2_000
)

func beginning(s string) string { return cut(s, maxShown) }

// cut returns a text, or the beginning of a text of more than most bytes.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for !utf8.RuneStart(s[most]) {
		most--
	}
	return fmt.Sprintf("%s… (%d bytes)", s[:most], len(s))
}

// entry is a field of an operation's record.
type entry struct{ Name, Value string }

// detail lists the fields of an object in their order.
func detail(object json.RawMessage) (all []entry) {
	d := json.NewDecoder(bytes.NewReader(object))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return []entry{{"detail", cut(string(object), maxDetail)}}
	}
	for d.More() {
		name, err := d.Token()
		var value json.RawMessage
		if err == nil {
			err = d.Decode(&value)
		}
		if err != nil {
			return all
		}
		all = append(all, entry{strings.ReplaceAll(fmt.Sprint(name), "_", " "), cut(fieldOf(value), maxDetail)})
	}
	return all
}

// fieldOf is a value for people.
func fieldOf(value json.RawMessage) string {
	var text string
	var list []json.RawMessage
	switch {
	case json.Unmarshal(value, &text) == nil:
		return text
	case json.Unmarshal(value, &list) == nil:
		var items []string
		for _, v := range list[:min(len(list), maxItems)] {
			items = append(items, fieldOf(v))
		}
		if len(list) > maxItems {
			items = append(items, "… ("+thousands(len(list))+" in all)")
		}
		return strings.Join(items, ", ")
	}
	return string(value)
}

const (
	maxDetail = 1_000 // bytes of a field. All of it is in the JSON of the page
	maxItems  = 20    // of a list
)

func count[T int | int64](n T, what string) string {
	if n != 1 {
		what += "s"
	}
	return thousands(n) + " " + what
}

// some lists the first names.
func some(all []string, none string) string {
	switch {
	case len(all) == 0:
		return none
	case len(all) > mostNamed:
		return strings.Join(all[:mostNamed], ", ") + " and " + count(len(all)-mostNamed, "other")
	}
	return strings.Join(all, ", ")
}

const mostNamed = 8
