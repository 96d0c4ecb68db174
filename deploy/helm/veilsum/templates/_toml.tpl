{{/* Values as TOML. Helm's own toToml writes whole numbers as 1.0, which the configuration's counts refuse. */}}

{{- define "veilsum.tomlKey" -}}
{{- if regexMatch "^[A-Za-z0-9_-]+$" . }}{{ . }}{{ else }}{{ toJson . }}{{ end -}}
{{- end -}}

{{- define "veilsum.tomlValue" -}}
{{- if kindIs "string" . -}}
{{ toJson . }}
{{- else if kindIs "bool" . -}}
{{ . }}
{{- else if kindIs "slice" . -}}
[{{ range $index, $item := . }}{{ if $index }}, {{ end }}{{ include "veilsum.tomlValue" $item }}{{ end }}]
{{- else if kindIs "map" . -}}
{{ fail "A list in `config` holds a table: veilsum's files have none." }}
{{- else if eq (float64 .) (floor .) -}}
{{ printf "%.0f" (float64 .) }}
{{- else -}}
{{ printf "%v" (float64 .) }}
{{- end -}}
{{- end -}}

{{/* Takes (dict "values" map "path" (list of keys)); keys without a value are left out. */}}
{{- define "veilsum.toml" -}}
{{- range $key, $value := .values }}
{{- if not (or (kindIs "map" $value) (kindIs "invalid" $value)) }}
{{ include "veilsum.tomlKey" $key }} = {{ include "veilsum.tomlValue" $value }}
{{- end }}
{{- end }}
{{- $path := .path }}
{{- range $key, $value := .values }}
{{- if kindIs "map" $value }}
{{- $inner := append $path (include "veilsum.tomlKey" $key) }}

[{{ join "." $inner }}]
{{- include "veilsum.toml" (dict "values" $value "path" $inner) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Tables that both roles have. Takes (dict "root" $ "part" part "port" number). */}}
{{- define "veilsum.commonConfig" -}}
{{- $metrics := (index .root.Values .part).metrics -}}
{{- $listen := dict "listen" (printf "127.0.0.1:%d" .port) -}}
{{- if $metrics.enabled -}}
{{- $listen = dict "listen" (printf "0.0.0.0:%d" .port) "certificate" "/etc/veilsum/metrics/tls.crt" "key" "/etc/veilsum/metrics/tls.key" "token_file" "/etc/veilsum/metrics/token" -}}
{{- end -}}
{{ toYaml (dict "log" .root.Values.log "metrics" $listen "identity" "/etc/veilsum/identity") }}
{{- end -}}

{{- define "veilsum.coordinatorToml" -}}
{{- $part := .Values.coordinator -}}
{{- $own := dict "listen" "0.0.0.0:8461" "state" "/var/lib/veilsum" -}}
{{- if $part.tls.existingSecret -}}
{{- $_ := set $own "tls" (dict "certificate" "/etc/veilsum/tls/tls.crt" "key" "/etc/veilsum/tls/tls.key") -}}
{{- end -}}
{{- $common := include "veilsum.commonConfig" (dict "root" . "part" "coordinator" "port" 9464) | fromYaml -}}
# coordinator.toml, written by Helm.
{{- include "veilsum.toml" (dict "values" (merge $own $common (deepCopy $part.config)) "path" list) }}
{{- end -}}

{{- define "veilsum.participantToml" -}}
{{- $part := .Values.participant -}}
{{- $_ := required "participant.config.coordinator: name the coordinator as host:port, as its certificate names it" $part.config.coordinator -}}
{{- if not $part.config.datasets }}{{ fail "participant.config.datasets: name at least one dataset and its path" }}{{ end -}}
{{- $own := dict "state" "/var/lib/veilsum/participant.db" -}}
{{- if or $part.caBundle.existingSecret $part.caBundle.existingConfigMap -}}
{{- $_ := set $own "ca_bundle" "/etc/veilsum/ca/ca.pem" -}}
{{- end -}}
{{- if $part.directory.use -}}
{{- $_ := set $own "policy" (dict "directory" "/etc/veilsum/directory/directory.json") -}}
{{- end -}}
{{- if $part.proxyPassword.existingSecret -}}
{{- $_ := set $own "proxy_password_file" "/etc/veilsum/proxy/password" -}}
{{- end -}}
{{- $common := include "veilsum.commonConfig" (dict "root" . "part" "participant" "port" 9465) | fromYaml -}}
{{- $stated := merge (deepCopy $part.config) (dict "isolation" "processes") -}}
# participant.toml, written by Helm.
{{- include "veilsum.toml" (dict "values" (merge $own $common $stated) "path" list) }}
{{- end -}}
