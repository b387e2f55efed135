package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Save keeps a cold copy of the data, in place of the one before: the server is
// shut down, copied, and started again.
func (s *Server) Save(ctx context.Context) error {
	return s.whileDown(ctx, "copied", func() error {
		if err := os.RemoveAll(s.home.copy()); err != nil {
			return err
		}
		err := os.Mkdir(s.home.copy(), 0o700)
		if err == nil {
			err = s.who.give(s.home.copy())
		}
		if err == nil {
			err = s.duplicate(ctx, s.home.data(), s.home.copy())
		}
		return err
	})
}

// PutBack puts the copy of Save in place of the data, as somebody does who
// restores a backup: the server is shut down, and started on the copy.
func (s *Server) PutBack(ctx context.Context) error {
	if s.home == nil {
		return s.mine("set back")
	}
	if _, err := os.Stat(s.home.copy()); errors.Is(err, fs.ErrNotExist) {
		return errors.New("embedded: there is no copy of the data: call Save before")
	}
	return s.whileDown(ctx, "set back", func() error {
		err := empty(s.home.data())
		if err == nil {
			err = s.duplicate(ctx, s.home.copy(), s.home.data())
		}
		return err
	})
}

// whileDown does something to the data of the server, which is down for that
// long.
func (s *Server) whileDown(ctx context.Context, done string, do func() error) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	if err := s.mine(done); err != nil {
		return err
	}
	if err := s.process.Load().shutdown(ctx); err != nil {
		return err
	}
	if err := do(); err != nil {
		return fmt.Errorf("embedded: the server is down and cannot be %s: %w", done, err)
	}
	return s.start(ctx)
}

// empty removes what is in a directory. The directory itself may be a disk.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}

// duplicate copies what is in a directory to another, as the server's user.
func (s *Server) duplicate(ctx context.Context, from, to string) error {
	out, err := run(ctx, s.who, s.home.path, "cp", "-a", from+"/.", to)
	if err != nil {
		return fmt.Errorf("cp: %w%s", err, indent(out))
	}
	return nil
}
