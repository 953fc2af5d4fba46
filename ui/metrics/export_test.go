package metrics

// ForgetDataDirs makes the next sample measure no data folder, as if all were gone.
func ForgetDataDirs(s *Sampler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opts.DataDirs = nil
}
