package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"gopkg.in/yaml.v3"
)

// maxFileBytes bounds a configuration file. The longest sensible one is a few KiB; past a MiB somebody named
// the wrong file.
const maxFileBytes = 1 << 20

// ReadFile reads a configuration file. It returns the *fs.PathError of a file that cannot be read, and
// ErrInvalid, with file and line, for one that is not a plain mapping of known keys.
func ReadFile(path string) (Settings, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("configuration file: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("configuration file: %w", err)
	}
	if len(text) > maxFileBytes {
		return nil, invalidf("%s: longer than %d bytes; is this a configuration file?", path, maxFileBytes)
	}
	return ParseFile(path, text)
}

// ParseFile takes the settings out of a configuration file's text; path is for the messages. The file is a YAML
// mapping of keys to a scalar, or to a sequence of scalars where the key is a list. An empty file sets nothing.
func ParseFile(path string, text []byte) (Settings, error) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return Settings{}, nil
	} else if err != nil {
		return nil, invalidf("%s: not YAML: %s", path, oneLine(err.Error()))
	}
	var more yaml.Node
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, invalidf("%s: holds more than one YAML document; keep one", path)
	}
	root := &doc
	if doc.Kind == yaml.DocumentNode && len(doc.Content) == 1 {
		root = doc.Content[0]
	}
	if root.Tag == "!!null" {
		return Settings{}, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, invalidf("%s:%d: want a mapping, such as role: all", path, root.Line)
	}
	out := Settings{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		if err := fileKey(out, path, root.Content[i], root.Content[i+1]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// fileKey takes one key and its value into out.
func fileKey(out Settings, path string, name, value *yaml.Node) error {
	at := fmt.Sprintf("%s:%d", path, name.Line)
	k, ok := lookup(name.Value)
	if !ok || name.Kind != yaml.ScalarNode {
		return invalidf("%s: unknown key %q; see strake --help for the keys", at, name.Value)
	}
	if k.Name == KeyConfig {
		return invalidf("%s: %s cannot stand in the file itself; remove it", at, KeyConfig)
	}
	if _, twice := out[k.Name]; twice {
		return invalidf("%s: %s is set a second time; keep one", at, k.Name)
	}
	nodes := []*yaml.Node{value}
	if value.Kind == yaml.SequenceNode {
		if !k.Repeated {
			return invalidf("%s: %s takes one value, not a list", at, k.Name)
		}
		nodes = value.Content
	}
	var values []string
	for _, n := range nodes {
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			return invalidf("%s: %s has no plain value; write %s: %s", at, k.Name, k.Name, k.Arg)
		}
		values = append(values, n.Value)
	}
	if len(values) > 0 {
		out[k.Name] = Setting{Values: values, Origin: at}
	}
	return nil
}

// oneLine folds a message that a library spread over lines.
func oneLine(s string) string {
	return string(bytes.Join(bytes.Fields([]byte(s)), []byte(" ")))
}
