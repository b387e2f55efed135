package tables

import (
	"cmp"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/store"
)

// Configured is a table whose name users may set.
type Configured struct {
	Key     string // of the field, such as worker-nodes
	Default string
	Name    *string // the field
}

// ConfiguredOf returns the tables whose names n sets, in the order of the fields.
func ConfiguredOf(n *store.Names) (all []Configured) {
	v := reflect.ValueOf(n).Elem()
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.Tag != "" {
			all = append(all, Configured{keyOf(f.Name), f.Tag.Get("default"), v.Field(i).Addr().Interface().(*string)})
		}
	}
	return all
}

// keyOf returns the words of a field's name in lower case, with hyphens between them.
func keyOf(field string) string {
	return strings.ToLower(regexp.MustCompile(`(.)([A-Z])`).ReplaceAllString(field, "$1-$2"))
}

// Given returns the fields of n that are set, as in "Schema: app, Jobs: work".
func Given(n store.Names) string {
	var set []string
	for v, i := reflect.ValueOf(n), 0; i < v.NumField(); i++ {
		if s := v.Field(i).String(); s != "" {
			set = append(set, v.Type().Field(i).Name+": "+s)
		}
	}
	return strings.Join(set, ", ")
}

// parse sets the fields of into, a *Tables or a *Jobs.
func parse(n store.Names, into any) error {
	for field, value := range map[string]string{"Names.Schema": n.Schema, "Names.Prefix": n.Prefix} {
		if err := ident.Check(field, value); err != nil && value != "" {
			return err
		}
	}
	v := reflect.ValueOf(into).Elem()
	bases, wrong, all := map[string]ident.Table{}, map[string]bool{}, []error(nil)
	of := map[ident.Table]string{} // the field that names a table
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		field := tag.Get("of")
		base, known := bases[field]
		if !known && !wrong[field] {
			var err error
			base, err = ident.ParseTable("Names."+field, nameOf(n, field))
			bases[field], wrong[field] = base, err != nil
			all = append(all, err)
		}
		if wrong[field] {
			continue
		}
		table, err := base.Sibling("Names."+field, tag.Get("drop"), tag.Get("add"))
		all = append(all, err)
		if other, taken := of[table]; taken && err == nil {
			all = append(all, fmt.Errorf("%s and %s both name %q: give each a table of its own", other, fieldAndSuffix(tag), table))
		}
		of[table] = fieldAndSuffix(tag)
		v.Field(i).Set(reflect.ValueOf(table))
	}
	return errtext.Join(all...)
}

// fieldAndSuffix tells where a table's name comes from.
func fieldAndSuffix(tag reflect.StructTag) string {
	if add := tag.Get("add"); add != "" {
		return "Names." + tag.Get("of") + " with " + add
	}
	return "Names." + tag.Get("of")
}

// nameOf returns the name that a field has, with the schema, or the default.
func nameOf(n store.Names, field string) string {
	f, _ := reflect.TypeFor[store.Names]().FieldByName(field)
	name := cmp.Or(reflect.ValueOf(n).FieldByIndex(f.Index).String(), n.Prefix+f.Tag.Get("default"))
	if n.Schema != "" && !strings.Contains(name, ".") {
		name = n.Schema + "." + name
	}
	return name
}
