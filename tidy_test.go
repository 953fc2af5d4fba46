package main

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/strakefs/strake"

// place is where a package stands: its floor, and the packages of the same floor that it may import.
type place struct {
	floor  int
	beside []string
}

// floors is the table of ARCHITECTURE.md. Imports point down; sideways only where beside says so.
var floors = map[string]place{
	"fs/fid": {floor: 0}, "fs/extent": {floor: 0}, "fs/status": {floor: 0},
	"fs/attr":  {floor: 0, beside: []string{"fs/fid"}},
	"fs/stats": {floor: 0}, "fs/failpoint": {floor: 0, beside: []string{"fs/stats", "fs/status"}}, "fs/env": {floor: 0}, "fs/virtual": {floor: 0}, "assets": {floor: 0},
	// Configuration may import floor 0 only, and is read by the floors that start things.
	"server/config": {floor: 0},

	"fs/layout": {floor: 1}, "fs/ldlm": {floor: 1}, "store": {floor: 1},
	"store/boltdev":   {floor: 1, beside: []string{"store"}},
	"store/memdev":    {floor: 1, beside: []string{"store"}},
	"store/faultdev":  {floor: 1, beside: []string{"store"}},
	"store/storetest": {floor: 1, beside: []string{"store"}},

	"fs/wire/wirepb": {floor: 2}, "fs/wire": {floor: 2, beside: []string{"fs/wire/wirepb"}},

	"fs/rpc": {floor: 3}, "fs/rpc/rpctest": {floor: 3, beside: []string{"fs/rpc"}}, "server/jobstats": {floor: 3}, "server/quota": {floor: 3},

	"fs/mgc": {floor: 4}, "fs/lockcache": {floor: 4},
	"fs/mdc":           {floor: 4, beside: []string{"fs/lockcache"}},
	"fs/osc":           {floor: 4, beside: []string{"fs/lockcache"}},
	"fs/lov":           {floor: 4, beside: []string{"fs/lockcache", "fs/mdc", "fs/osc"}},
	"server/target":    {floor: 4},
	"server/lockd":     {floor: 4, beside: []string{"server/target"}},
	"server/osp":       {floor: 4, beside: []string{"server/target", "server/lockd"}},
	"server/quota/qmt": {floor: 4, beside: []string{"server/target", "server/lockd"}},
	"server/quota/qsd": {floor: 4, beside: []string{"server/target", "server/lockd", "fs/lockcache"}},

	"fs/client": {floor: 5}, "server/mdt": {floor: 5}, "server/ost": {floor: 5}, "server/mgs": {floor: 5},

	"fs/fusefs": {floor: 6}, "fs": {floor: 6, beside: []string{"fs/fusefs"}},
	"server": {floor: 6}, "server/check": {floor: 6},

	"server/forgetfs": {floor: 0},

	"server/cluster": {floor: 7}, "server/suite": {floor: 7, beside: []string{"server/cluster"}},

	"": {floor: 8},
}

// uiFloor is the floor of every package under ui; they may import each other downwards in the listing of the rules.
const uiFloor = 7

// listed is what go list says about a package.
type listed struct {
	ImportPath, Dir                              string
	Imports, TestImports, XTestImports           []string
	GoFiles, TestGoFiles, XTestGoFiles, CgoFiles []string
}

func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var p listed
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

// short gives an import path from the module's root, and false for one of another module.
func short(path string) (string, bool) {
	if path == module {
		return "", true
	}
	return strings.CutPrefix(path, module+"/")
}

// placeOf finds a package's place.
func placeOf(pkg string) (place, bool) {
	if strings.HasPrefix(pkg, "ui/") {
		return place{floor: uiFloor}, true
	}
	p, ok := floors[pkg]
	return p, ok
}

// TestFloors holds that imports point down.
func TestFloors(t *testing.T) {
	for _, p := range packages(t) {
		pkg, _ := short(p.ImportPath)
		at, ok := placeOf(pkg)
		if !ok {
			t.Errorf("%s has no floor; give it one in tidy_test.go and ARCHITECTURE.md", p.ImportPath)
			continue
		}
		for _, imp := range p.Imports {
			dep, ours := short(imp)
			if !ours {
				continue
			}
			below, ok := placeOf(dep)
			switch {
			case !ok: // said once, above
			case below.floor < at.floor, slices.Contains(at.beside, dep):
			case strings.HasPrefix(pkg, "ui/") && strings.HasPrefix(dep, "ui/"):
			default:
				t.Errorf("%s (floor %d) imports %s (floor %d)", pkg, at.floor, dep, below.floor)
			}
			if why := forbidden(pkg, dep); why != "" {
				t.Errorf("%s imports %s: %s", pkg, dep, why)
			}
		}
	}
}

// forbidden holds the rules that floors alone do not say. It returns the rule that an import breaks.
func forbidden(pkg, dep string) string {
	under := func(p string, dirs ...string) bool {
		for _, d := range dirs {
			if p == d || strings.HasPrefix(p, d+"/") {
				return true
			}
		}
		return false
	}
	switch {
	case under(pkg, "fs") && under(dep, "server", "store", "ui"):
		return "fs knows no server, store or user interface"
	case under(pkg, "store") && under(dep, "fs/wire", "fs/rpc", "server", "ui"):
		return "a store knows no protocol"
	case under(pkg, "server") && under(dep, "fs") && !under(pkg, "server/cluster", "server/suite") &&
		floors[dep].floor > 3 && dep != "fs/mgc" && dep != "fs/lockcache":
		return "servers take floors 0 to 3, mgc and lockcache from fs"
	case under(pkg, "server/mdt") && under(dep, "server/ost"), under(pkg, "server/ost") && under(dep, "server/mdt"):
		return "mdt and ost do not know each other"
	case under(pkg, "server") && under(dep, "ui"):
		return "servers know no user interface"
	case under(pkg, "ui") && under(dep, "server", "store") && dep != "server/config" && !(pkg == "ui/process" && dep == "server") && !(pkg == "ui/check" && dep == "server/check"):
		return "ui reaches servers by RPC, and lfs through the mount"
	case under(pkg, "server/config") && dep != "" && floors[dep].floor > 0:
		return "configuration knows floor 0 only"
	}
	return ""
}

// TestTopLevel holds the set of top-level names.
func TestTopLevel(t *testing.T) {
	names := []string{
		"main.go", "server", "fs", "ui", "store", "assets", "go.mod", "Dockerfile", "go.sum", "Makefile", ".ci", "docs",
		"tidy_test.go", "LICENSE", ".gitignore", ".dockerignore",
		".git", "bin", "strake-data", "strake-mnt", // not in the repository
	}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := e.Name()
		document := strings.HasSuffix(name, ".md")
		leftover := strings.HasSuffix(name, ".test") || strings.HasSuffix(name, ".prof")
		if !document && !leftover && !slices.Contains(names, name) {
			t.Errorf("%s does not belong at the top", name)
		}
	}
}

// Limits of STYLE rules 8 and 9.
const (
	maxFileLines = 500
	maxLongLines = 800 // with a reason on line 1, after longMark
	maxFuncLines = 70
	maxParams    = 5
	maxMethods   = 12
	maxMainLines = 150
	longMark     = "// Long file: "
)

// TestSource holds what can be read off the source files one by one.
func TestSource(t *testing.T) {
	for _, p := range packages(t) {
		hasDoc := len(p.GoFiles) == 1 // then the one file holds the package's comment, which vet and lint see to
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles, p.TestGoFiles, p.XTestGoFiles) {
			path := filepath.Join(p.Dir, name)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Error(err)
				continue
			}
			rel, _ := short(p.ImportPath)
			f := sourceFile{name: filepath.Join(rel, name), text: text}
			hasDoc = hasDoc || name == "doc.go" || rel == ""
			f.check(t)
		}
		if !hasDoc && len(p.GoFiles) > 0 && !strings.HasSuffix(p.ImportPath, "pb") {
			t.Errorf("%s has no doc.go", p.ImportPath)
		}
	}
}

// sourceFile is one file under check.
type sourceFile struct {
	name string
	text []byte
	set  *token.FileSet
}

func (f *sourceFile) check(t *testing.T) {
	if formatted, err := format.Source(f.text); err != nil || !bytes.Equal(formatted, f.text) {
		t.Errorf("%s: not as gofmt writes it (%v)", f.name, err)
	}
	f.set = token.NewFileSet()
	file, err := parser.ParseFile(f.set, f.name, f.text, parser.ParseComments)
	if err != nil {
		t.Error(err)
		return
	}
	if strings.HasSuffix(f.name, "_test.go") || ast.IsGenerated(file) {
		return
	}
	f.checkLength(t)
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			f.checkFunc(t, d)
		case *ast.GenDecl:
			f.checkGen(t, d)
		}
	}
}

func (f *sourceFile) checkLength(t *testing.T) {
	limit := maxFileLines
	if bytes.HasPrefix(f.text, []byte(longMark)) {
		limit = maxLongLines
	}
	if f.name == "main.go" {
		limit = maxMainLines
	}
	if n := bytes.Count(f.text, []byte("\n")); n > limit {
		t.Errorf("%s: %d lines, at most %d", f.name, n, limit)
	}
}

func (f *sourceFile) checkFunc(t *testing.T, d *ast.FuncDecl) {
	start, end := f.set.Position(d.Pos()).Line, f.set.Position(d.End()).Line
	if n := end - start + 1; n > maxFuncLines {
		t.Errorf("%s:%d: %s has %d lines, at most %d", f.name, start, d.Name.Name, n, maxFuncLines)
	}
	if d.Recv == nil && d.Name.Name == "init" {
		t.Errorf("%s:%d: init; pass what it prepares through a constructor", f.name, start)
	}
	params := 0
	for i, field := range d.Type.Params.List {
		n := max(1, len(field.Names))
		if i == 0 && isContext(field.Type) {
			n--
		}
		params += n
	}
	if params > maxParams {
		t.Errorf("%s:%d: %s has %d parameters after ctx, at most %d", f.name, start, d.Name.Name, params, maxParams)
	}
}

func isContext(e ast.Expr) bool {
	sel, ok := e.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "Context"
}

func (f *sourceFile) checkGen(t *testing.T, d *ast.GenDecl) {
	for _, spec := range d.Specs {
		line := f.set.Position(spec.Pos()).Line
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			if i, ok := spec.Type.(*ast.InterfaceType); ok && i.Methods.NumFields() > maxMethods {
				t.Errorf("%s:%d: %s has %d methods, at most %d", f.name, line, spec.Name.Name, i.Methods.NumFields(), maxMethods)
			}
		case *ast.ValueSpec:
			if d.Tok == token.VAR && !embeds(d.Doc) && !embeds(spec.Doc) {
				f.checkVar(t, spec)
			}
		}
	}
}

// embeds reports whether a comment group holds a go:embed directive.
func embeds(g *ast.CommentGroup) bool {
	return g != nil && slices.ContainsFunc(g.List, func(c *ast.Comment) bool {
		return strings.HasPrefix(c.Text, "//go:embed ")
	})
}

// checkVar refuses package variables but error values, assertions, constant tables and compiled patterns.
func (f *sourceFile) checkVar(t *testing.T, spec *ast.ValueSpec) {
	if f.name == "main.go" { // the version, which the linker sets
		return
	}
	for i, name := range spec.Names {
		if name.Name == "_" || strings.HasPrefix(strings.ToLower(name.Name), "err") {
			continue
		}
		if i < len(spec.Values) && constantTable(spec.Values[i]) {
			continue
		}
		t.Errorf("%s:%d: package variable %s; pass it through a constructor", f.name,
			f.set.Position(name.Pos()).Line, name.Name)
	}
}

// constantTable reports whether a value is a literal table or a call that makes one from literals.
func constantTable(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.CompositeLit:
		sel, isSel := e.Type.(*ast.SelectorExpr)
		return !isSel || sel.Sel.Name != "Pool" && sel.Sel.Name != "Mutex" && sel.Sel.Name != "Map"
	case *ast.SelectorExpr: // another package's constant value under a shorter name
		return true
	case *ast.CallExpr:
		if _, conversion := e.Fun.(*ast.ArrayType); conversion {
			_, literal := e.Args[0].(*ast.BasicLit)
			return literal
		}
		sel, ok := e.Fun.(*ast.SelectorExpr)
		if !ok {
			return false
		}
		pkg, _ := sel.X.(*ast.Ident)
		call := sel.Sel.Name
		return pkg != nil && (pkg.Name == "regexp" && call == "MustCompile" || pkg.Name == "crc32" && call == "MakeTable" ||
			pkg.Name == "errors" && call == "New" || pkg.Name == "strings" && call == "NewReplacer")
	}
	return false
}
