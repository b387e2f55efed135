// Package sqltext builds statements from .sql files.
package sqltext

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"reflect"
	"regexp"
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Texts are the texts of files by their name, without .sql. A file has one statement, or a fragment
// of statements. A line that begins with -- is a comment, which the server does not get.
//
// {name} is replaced by a value, such as the name of a table, or else by the fragment name.sql.
// {name x} is replaced by the fragment with x for its {argument}, or by one of the expressions of
// package pgdriver: time, time_or_never, microseconds and age.
type Texts map[string]string

// Parse reads the files of a package. It panics unless files has a folder sql with .sql files.
func Parse(files fs.FS) Texts {
	names, err := fs.Glob(files, "sql/*.sql")
	if err != nil || len(names) == 0 {
		panic(fmt.Sprintf("sqltext: no file sql/*.sql (%v)", err))
	}
	t := Texts{}
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			panic("sqltext: " + err.Error())
		}
		var kept []string
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(strings.TrimSpace(line), "--") {
				kept = append(kept, line)
			}
		}
		t[strings.TrimSuffix(path.Base(name), ".sql")] = strings.TrimSpace(strings.Join(kept, ""))
	}
	return t
}

// Values are the values of placeholders. A value is not searched for placeholders.
type Values map[string]string

var capital = regexp.MustCompile(`([a-z])([A-Z])`)

// Names returns the names of tables by the fields of a struct: {dead_letters} is the field
// DeadLetters. more are further values.
func Names(tables any, more Values) Values {
	v, values := reflect.ValueOf(tables), maps.Clone(more)
	if values == nil {
		values = Values{}
	}
	for _, f := range reflect.VisibleFields(v.Type()) {
		if !f.IsExported() {
			continue
		}
		if table, ok := v.FieldByIndex(f.Index).Interface().(ident.Table); ok {
			values[strings.ToLower(capital.ReplaceAllString(f.Name, "${1}_${2}"))] = table.SQL()
		}
	}
	return values
}

var functions = map[string]func(of string) string{
	"time": pgdriver.Time, "time_or_never": pgdriver.TimeOrNever, "microseconds": pgdriver.Microseconds, "age": pgdriver.Age,
}

// placeholder is {name} or {name argument}. The argument may contain {name}. Whatever begins with a
// letter is a name, so that no name is left unfilled.
var placeholder = regexp.MustCompile(`\{([A-Za-z][^{}\s]*)(?: ((?:[^{}]|\{[A-Za-z][^{}\s]*\})+))?\}`)

// Statement returns the text of a file with its placeholders replaced. It panics if there is no
// such file or no value for a placeholder. Call Statement where a package makes all its
// statements, so that each test finds the mistake.
func (t Texts) Statement(name string, values Values) string {
	text, ok := t[name]
	if !ok {
		panic(fmt.Sprintf("sqltext: there is no file sql/%s.sql", name))
	}
	return t.Fill(text, values)
}

// Fill is [Texts.Statement] for a text of no file.
func (t Texts) Fill(text string, values Values) string {
	return placeholder.ReplaceAllStringFunc(text, func(p string) string {
		of := placeholder.FindStringSubmatch(p)
		name, argument := of[1], t.Fill(of[2], values)
		if function := functions[name]; function != nil && argument != "" {
			return function(argument)
		}
		if value, ok := values[name]; ok && argument == "" {
			return value
		}
		fragment, ok := t[name]
		if !ok || strings.Contains(fragment, "{argument}") != (argument != "") {
			panic(fmt.Sprintf("sqltext: no value for %s in: %s", p, text))
		}
		with := Values{}
		maps.Copy(with, values)
		with["argument"] = argument
		return t.Fill(fragment, with)
	})
}
