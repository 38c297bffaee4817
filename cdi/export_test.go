package cdi

// GenerateWhile writes the files as Generate does, and calls a function after each plan.
func (f Files) GenerateWhile(planned func()) (changes []FileResult, notes []string, err error) {
	return f.planAndApply(func(files []cdiFile) ([]cdiFile, []string) {
		planned()
		return files, []string{"a note"}
	})
}
