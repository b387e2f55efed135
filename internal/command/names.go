package command

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// NameFlags adds the flags that all names of tables share: schema and prefix. f is a set of flags
// of package flag or pflag.
func NameFlags(f interface {
	Func(name, usage string, set func(string) error)
}, n *store.Names) {
	set := func(to *string) func(string) error {
		return func(s string) error {
			if *to = s; s == "" {
				return nil
			}
			return errors.Unwrap(ident.Check("", s)) // both packages name the flag and the value
		}
	}
	f.Func("schema", "`schema` of the tables that are named without one", set(&n.Schema))
	f.Func("prefix", "`text` before the default names of tables, such as shop_", set(&n.Prefix))
}

// SetName sets the field of n that key names: schema, prefix, or a table such as worker-nodes.
func SetName(n *store.Names, key, name string) error {
	if name == "" {
		return fmt.Errorf("%q has no name: it is key=name, such as events=app.events", key)
	}
	switch key {
	case "schema":
		n.Schema = name
		return ident.Check(key, name)
	case "prefix":
		n.Prefix = name
		return ident.Check(key, name)
	}
	for _, t := range tables.ConfiguredOf(n) {
		if t.Key == key {
			*t.Name = name
			_, err := ident.ParseTable(key, name)
			return err
		}
	}
	return fmt.Errorf("there is no table %q, there are %s", key, TableKeys())
}

// TableKeys lists the tables that SetName takes.
func TableKeys() string {
	var keys []string
	for _, t := range tables.ConfiguredOf(&store.Names{}) {
		keys = append(keys, t.Key)
	}
	return strings.Join(keys, ", ")
}
