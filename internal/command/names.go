package command

import (
	"fmt"
	"strings"

	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// NameFlags adds the flags that all names of tables share: schema and prefix. f is a set of flags
// of package flag or pflag.
func NameFlags(f interface {
	StringVar(p *string, name, value, usage string)
}, n *store.Names) {
	f.StringVar(&n.Schema, "schema", "", "`schema` of the tables that are named without one")
	f.StringVar(&n.Prefix, "prefix", "", "`text` before the default names of tables, such as shop_")
}

// SetName sets the field of n that key names: schema, prefix, or a table such as worker-nodes.
func SetName(n *store.Names, key, name string) error {
	if name == "" {
		return fmt.Errorf("%q has no name: it is key=name, such as events=app.events", key)
	}
	fields := map[string]*string{"schema": &n.Schema, "prefix": &n.Prefix}
	for _, t := range tables.ConfiguredOf(n) {
		fields[t.Key] = t.Name
	}
	if fields[key] == nil {
		return fmt.Errorf("there is no table %q, there are %s", key, TableKeys())
	}
	*fields[key] = name
	return nil
}

// TableKeys lists the tables that SetName takes.
func TableKeys() string {
	var keys []string
	for _, t := range tables.ConfiguredOf(&store.Names{}) {
		keys = append(keys, t.Key)
	}
	return strings.Join(keys, ", ")
}
