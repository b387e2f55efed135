package embedded

import "errors"

// Fill makes the disk of a server that has one (Config.Disk) full: nothing more
// can be written to it until Free.
func (s *Server) Fill() error {
	if err := s.hasDisk(); err != nil {
		return err
	}
	return fillDisk(s.home.data())
}

// Free gives the disk its size back. A server that has ended for want of room
// needs a Restart.
func (s *Server) Free() error {
	if err := s.hasDisk(); err != nil {
		return err
	}
	return freeDisk(s.home.data(), s.disk)
}

func (s *Server) hasDisk() error {
	if s.disk == 0 {
		return errors.New("embedded: the server has no disk of its own (Config.Disk)")
	}
	return s.mine("starved of room")
}
