package config

import (
	"sort"
	"strings"
)

// envPrefix begins every variable that this package owns.
const envPrefix = "STRAKE_"

// envReserved are the names under the prefix that belong to the tests and say nothing about a process. One that
// ends in '_' reserves all that begin with it.
var envReserved = [...]string{"STRAKE_SUITE_", "STRAKE_TEST_", "STRAKE_SOAK", "STRAKE_TORTURE", "STRAKE_TORTURE_TIME"}

// FromEnv takes the settings out of an environment, given as "NAME=value" strings (os.Environ). A variable with an
// empty value counts as not set. Lists are separated by commas; a data folder or mount point with a comma in its
// name has to stand in the file. It returns ErrInvalid for a STRAKE_ variable that is no key.
func FromEnv(environ []string) (Settings, error) {
	out := Settings{}
	var unknown []string
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, envPrefix) || reserved(name) {
			continue
		}
		k, ok := keyOfEnv(name)
		if !ok {
			unknown = append(unknown, name)
			continue
		}
		if value == "" {
			continue
		}
		values := []string{value}
		if k.Repeated && k.Name != KeyOptions {
			values = values[:0]
			for part := range strings.SplitSeq(value, ",") {
				if part != "" {
					values = append(values, part)
				}
			}
		}
		if len(values) > 0 {
			out[k.Name] = Setting{Values: values, Origin: name}
		}
	}
	if len(unknown) > 0 {
		sort.Strings(unknown)
		return nil, invalidf("%s: unknown environment variable; unset it, or see strake --help for the keys",
			strings.Join(unknown, ", "))
	}
	return out, nil
}

// keyOfEnv finds the key that a variable sets. Names are upper case only: STRAKE_role is unknown, not role.
func keyOfEnv(name string) (Key, bool) {
	for _, k := range keys {
		if name == EnvName(k.Name) {
			return k, true
		}
	}
	return Key{}, false
}

// EnvName gives a key's variable: "mgs-timeout" is STRAKE_MGS_TIMEOUT.
func EnvName(key string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
}

func reserved(name string) bool {
	for _, r := range envReserved {
		if name == r || strings.HasSuffix(r, "_") && strings.HasPrefix(name, r) {
			return true
		}
	}
	return false
}
