package migrations

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pgfrontier/worker/internal/errtext"
)

// GeneratePostgres writes SQL(c), the worker's tables, to OutputFolder/OutputFilename, and
// creates the folder if it is missing. It replaces an earlier file of its own, and no other
// file.
//
// GeneratePostgres refuses a Config of which only EventsTable or AggregateHeadsTable names a table.
// The functions of this name in eventsalsa/store and pupsourcing/store write the store's tables.
func GeneratePostgres(c *Config) error {
	if table := c.storeAlone(); table != "" {
		return fmt.Errorf("migrations: GeneratePostgres writes the worker's tables, and the Config names %q, a table of the event store, and none of the worker's: call GenerateStore for the event store's tables; for the worker's, name its tables in Names", table)
	}
	return generate(c, SQL)
}

// GenerateStore writes StoreSQL(c), as GeneratePostgres writes SQL(c). Use another file name.
func GenerateStore(c *Config) error { return generate(c, StoreSQL) }

// GenerateJobs writes JobsSQL(c), the tables of jobs, as GeneratePostgres writes SQL(c). Use
// another file name.
func GenerateJobs(c *Config) error { return generate(c, JobsSQL) }

func generate(c *Config, content func(*Config) (string, error)) error {
	text, err := content(c)
	if err != nil {
		return err
	}
	if c == nil || c.OutputFilename == "" {
		return errors.New(`migrations: OutputFilename is empty: name the file to write, such as "001_worker_tables.sql"`)
	}
	folder, name := c.OutputFolder, c.OutputFilename
	if folder == "" {
		folder = "."
	}
	for _, path := range []string{folder, name} {
		if !utf8.ValidString(path) || strings.ContainsFunc(path, unicode.IsControl) {
			return fmt.Errorf("migrations: OutputFolder or OutputFilename %s has invalid UTF-8 or control characters: choose another", errtext.Value(path))
		}
	}
	if !filepath.IsLocal(name) || filepath.Base(name) != name || name == "." {
		return fmt.Errorf("migrations: OutputFilename %s is no plain file name: put folders into OutputFolder", errtext.Value(name))
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("migrations: cannot create OutputFolder %s: %w", errtext.Value(folder), causeOf(err))
	}
	root, err := os.OpenRoot(folder) // follows no link out of the folder
	if err != nil {
		return fmt.Errorf("migrations: cannot open OutputFolder %s: %w", errtext.Value(folder), causeOf(err))
	}
	defer root.Close()
	if err := write(root, name, text); err != nil {
		return fmt.Errorf("migrations: cannot write %s: %w", errtext.Value(filepath.Join(folder, name)), causeOf(err))
	}
	return nil
}

// causeOf returns err without the path, which may be long.
func causeOf(err error) error {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return path.Err
	}
	return err
}

// write replaces a file that begins with text's first line, and no other file. Otherwise one
// generator could overwrite the file of another.
func write(root *os.Root, name, text string) error {
	old, err := root.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	first, _, _ := strings.Cut(text, "\n")
	if len(old) > 0 && !strings.HasPrefix(string(old), first+"\n") {
		return fmt.Errorf("it exists and does not begin with %q: choose another OutputFilename, or remove it", first)
	}
	return root.WriteFile(name, []byte(text), 0o644)
}
