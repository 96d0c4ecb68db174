-- Parts of this recipe's queries. Each is written into a query in place of a line "@part name=value", and has the values in place of <name>,
-- so that the files that a site gets stand and can be changed each by itself.
-- @tables
-- What is of another type is left aside, so they may all be the same files. Of what a patient has several times under one id the last
-- version counts, by meta.lastUpdated, then meta.versionId. A subject is a Patient's id, whatever stands before it and its version
-- after it, or a URN; who is named by an identifier alone, or contained in the resource, is nobody, and who was replaced by one other
-- patient is that one. What has a modifierExtension or implicitRules means what nobody here knows, and what is labelled as test data
-- (HTEST) is of nobody: both are left aside. misses.sql counts what is.
-- @systems
systems(system, kind) AS (
    -- Code systems by URL or OID; those of your country or house go here, in all files of this recipe.
    VALUES
        ('http://snomed.info/sct', 'snomed'),
        ('urn:oid:2.16.840.1.113883.6.96', 'snomed'),
        ('http://loinc.org', 'loinc'),
        ('urn:oid:2.16.840.1.113883.6.1', 'loinc'),
        ('http://hl7.org/fhir/sid/icd-10', 'icd-10'),
        ('urn:oid:2.16.840.1.113883.6.3', 'icd-10'),
        ('http://hl7.org/fhir/sid/icd-10-cm', 'icd-10'),
        ('http://hl7.org/fhir/sid/icd-10-us', 'icd-10'),
        ('urn:oid:2.16.840.1.113883.6.90', 'icd-10'),
        ('http://fhir.de/CodeSystem/bfarm/icd-10-gm', 'icd-10'),
        ('http://fhir.de/CodeSystem/dimdi/icd-10-gm', 'icd-10'),
        ('http://terminology.hl7.org/CodeSystem/v3-ActCode', 'class'),
        ('http://hl7.org/fhir/v3/ActCode', 'class'),
        ('urn:oid:2.16.840.1.113883.5.4', 'class')
)
-- @system
lower(systems.system) = regexp_replace(regexp_replace(lower(<coding>.system), '^https:', 'http:'), '/*([|].*)?$', '')
-- @items
-- Resources; of a Bundle those in it, and in the Bundles in it.
SELECT if(bundled, item->>'$.fullUrl', NULL) AS url, if(bundled, item->'$.resource', item) AS json
FROM (
    SELECT
        type,
        type = 'Bundle' AS bundled,
        unnest(if(
            type = 'Bundle',
            flatten(list_transform(
                json_extract(json, '$.entry[*]'),
                lambda entry: if(entry->>'$.resource.resourceType' = 'Bundle', json_extract(entry, '$.resource.entry[*]'), [entry])
            )),
            [json]
        )) AS item
    FROM (SELECT json, json->>'$.resourceType' AS type FROM <table>)
)
WHERE if(bundled, item->>'$.resource.resourceType', type) = '<type>'
-- @name
CASE
    WHEN regexp_matches(<of>, '(?i)^urn:(uuid|oid):')
        THEN 'urn:' || lower(regexp_extract(<of>, '(?i)^urn:[a-z]+:(.+)$', 1))
    ELSE nullif(regexp_extract(<of>, '(?:^|/)<type>/([^/?#|]+)(?:/_history/[^/]+)?/?$', 1), '')
END AS <as>
-- @told
try_cast(resource.meta.lastUpdated AS TIMESTAMPTZ) AS changed,
try_cast(resource.meta.versionId AS BIGINT) AS version,
resource.modifierExtension IS NOT NULL OR resource.implicitRules IS NOT NULL AS modified,
coalesce(list_has_any(
    list_transform(list_concat(resource.meta.tag, resource.meta.security), lambda label: label.system || '|' || label.code),
    ['http://terminology.hl7.org/CodeSystem/v3-ActReason|HTEST', 'http://hl7.org/fhir/v3/ActReason|HTEST']
), false) AS test,
resource
-- @keys
"id": "VARCHAR", "implicitRules": "VARCHAR", "modifierExtension": "JSON",
"meta": {"lastUpdated": "VARCHAR", "versionId": "VARCHAR",
    "tag": [{"system": "VARCHAR", "code": "VARCHAR"}], "security": [{"system": "VARCHAR", "code": "VARCHAR"}]},
-- @persons
versions AS (
    SELECT
        coalesce(resource.id, url) AS patient,
        url,
        @told
    FROM (
        SELECT
            url,
            json_transform(json, '{
                @keys
                "active": "VARCHAR", "gender": "VARCHAR", "birthDate": "VARCHAR", "deceasedBoolean": "VARCHAR", "deceasedDateTime": "VARCHAR",
                "_deceasedBoolean": "VARCHAR", "_deceasedDateTime": "VARCHAR",
                "link": [{"type": "VARCHAR", "other": {"reference": "VARCHAR"}}]
            }') AS resource
        FROM (
            @items table=patient type=Patient
        )
    )
),
latest AS MATERIALIZED (
    -- The last version of each patient.
    SELECT *, list_filter(resource.link, lambda link: link.type = 'replaced-by') AS successors
    FROM (
        SELECT
            *,
            row_number() OVER (PARTITION BY patient ORDER BY changed DESC NULLS LAST, version DESC NULLS LAST, resource DESC) AS place
        FROM versions
        WHERE patient IS NOT NULL
    )
    WHERE place = 1
),
persons AS (
    SELECT patient, resource FROM latest WHERE coalesce(len(successors), 0) = 0 AND NOT modified AND NOT test
),
called AS (
    -- What a reference calls a patient: its id, or a URN of its id or of its place in a Bundle.
    SELECT patient AS name, patient FROM latest
    UNION
    SELECT 'urn:' || lower(patient), patient FROM latest
    UNION
    SELECT 'urn:' || lower(regexp_extract(url, '(?i)^urn:[a-z]+:(.+)$', 1)), patient FROM latest WHERE starts_with(lower(url), 'urn:')
),
links AS (
    -- By whom a patient was replaced; who was by several stands for nobody.
    SELECT
        patient,
        @name of=successors[1].other.reference type=Patient as=other
    FROM latest
    WHERE len(successors) = 1 AND NOT modified AND NOT test
),
meant AS (
    -- Whom a patient stands for: themselves, who replaced them, who replaced these, and so on.
    SELECT patient, patient AS whole FROM latest
    UNION
    SELECT meant.patient, called.patient
    FROM meant
    JOIN links ON links.patient = meant.whole
    JOIN called ON called.name = links.other
),
names AS (
    SELECT DISTINCT called.name, persons.patient
    FROM called
    JOIN meant ON meant.patient = called.patient
    JOIN persons ON persons.patient = meant.whole
)
-- @resource
<name>_read AS (
    SELECT
        @name of=resource.subject.reference type=Patient as=name,
        coalesce(resource.id, url) AS id,
        @told
    FROM (
        SELECT
            url,
            json_transform(json, '{
                @keys
                @<name>
                "subject": {"reference": "VARCHAR", "identifier": "JSON"}
            }') AS resource
        FROM (
            @items table=<table> type=<type>
        )
    )
),
<name>_last AS (
    -- Of each patient's, the last version of each; what has no id counts by itself.
    SELECT patient, id, modified, test, resource
    FROM (
        SELECT
            names.patient,
            <name>_read.*,
            row_number() OVER (PARTITION BY names.patient, id ORDER BY changed DESC NULLS LAST, version DESC NULLS LAST, resource DESC) AS place
        FROM <name>_read
        JOIN names ON names.name = <name>_read.name
    )
    WHERE id IS NULL OR place = 1
),
<name> AS (
    SELECT patient, id, resource FROM <name>_last WHERE NOT modified AND NOT test
)
-- @diagnosis
"code": {"coding": [{"system": "VARCHAR", "code": "VARCHAR",
    "extension": [{"url": "VARCHAR", "valueCoding": {"code": "VARCHAR"}}]}]}, "verificationStatus": "JSON",
-- @result
"status": "VARCHAR", "code": {"coding": [{"system": "VARCHAR", "code": "VARCHAR"}]},
"valueQuantity": {"value": "VARCHAR", "code": "VARCHAR", "comparator": "VARCHAR"},
"component": [{"code": {"coding": [{"system": "VARCHAR", "code": "VARCHAR"}]}, "modifierExtension": "JSON",
    "valueQuantity": {"value": "VARCHAR", "code": "VARCHAR", "comparator": "VARCHAR"}}],
"effectiveDateTime": "VARCHAR", "effectiveInstant": "VARCHAR", "effectivePeriod": {"start": "VARCHAR"}, "focus": "JSON",
-- @stay
"status": "VARCHAR", "class": {"system": "VARCHAR", "code": "VARCHAR"}, "period": {"start": "VARCHAR", "end": "VARCHAR"},
"partOf": {"reference": "VARCHAR"},
-- @focused
coalesce(list_distinct(json_extract_string(resource.focus, '$[*].reference')) <> [resource.subject.reference], false)
-- @classed
(resource.class.system IS NULL OR EXISTS (
    SELECT 1
    FROM systems
    WHERE systems.kind = 'class'
        AND @system coding=resource.class
))
-- @certainty
list_concat(
    json_extract_string(resource.verificationStatus, '$.coding[*].code'),
    [resource.verificationStatus->>'$'],
    list_transform(
        flatten(list_transform(resource.code.coding, lambda coding: coding.extension)),
        lambda extension: extension.url || '|' || extension.valueCoding.code
    )
)
-- @refuted
coalesce(list_has_any(
    @certainty,
    ['refuted', 'entered-in-error', 'http://fhir.de/StructureDefinition/icd-10-gm-diagnosesicherheit|A']
), false)
-- @suspected
coalesce(list_has_any(
    @certainty,
    ['unconfirmed', 'provisional', 'differential', 'http://fhir.de/StructureDefinition/icd-10-gm-diagnosesicherheit|V']
), false)
-- @measured
measures(code, unit, kind) AS (
    -- LOINC, and the UCUM unit that counts.
    VALUES ('4548-4', '%', 'hba1c'), ('2160-0', 'mg/dL', 'creatinine'), ('8480-6', 'mm[Hg]', 'systolic'), ('39156-5', 'kg/m2', 'bmi')
),
parts AS (
    -- An observation, and the components of a panel, each once however often it is coded.
    SELECT
        row_number() OVER () AS part,
        patient,
        try_cast(substr(coalesce(resource.effectiveDateTime, resource.effectiveInstant, resource.effectivePeriod.start), 1, 4) AS INTEGER) AS year,
        item
    FROM (
        SELECT
            patient,
            resource,
            unnest(list_concat(
                [{'code': resource.code, 'modifierExtension': CAST(NULL AS JSON), 'valueQuantity': resource.valueQuantity}],
                resource.component
            )) AS item
        FROM result
        WHERE resource.status IN ('final', 'amended', 'corrected')
            AND NOT @focused
    )
    WHERE item.modifierExtension IS NULL
),
known AS (
    SELECT DISTINCT
        coded.part,
        coded.patient,
        coded.year,
        measures.kind,
        measures.unit AS wanted,
        coded.item.valueQuantity.code AS unit,
        try_cast(coded.item.valueQuantity.value AS DOUBLE) AS value,
        coded.item.valueQuantity.comparator AS comparator
    FROM (SELECT *, unnest(item.code.coding) AS coding FROM parts) AS coded
    JOIN measures ON measures.code = trim(coded.coding.code)
    JOIN systems
        ON systems.kind = 'loinc'
        AND @system coding=coded.coding
),
measured AS (
    -- A value with a comparator, such as < 5, is none.
    SELECT * FROM known WHERE unit = wanted AND comparator IS NULL AND isfinite(value)
)
-- @visits
counted AS (
    SELECT
        patient,
        id,
        @name of=resource.partOf.reference type=Encounter as=whole,
        CASE
            WHEN NOT @classed
                THEN NULL
            WHEN resource.class.code IN ('IMP', 'ACUTE', 'NONAC') THEN 'inpatient'
            WHEN resource.class.code = 'AMB' THEN 'outpatient'
            WHEN resource.class.code = 'EMER' THEN 'emergency'
        END AS kind,
        try_cast(substr(resource.period.start, 1, 4) AS INTEGER) AS year,
        try_cast(substr(resource.period.start, 1, 10) AS DATE) AS begins,
        try_cast(substr(resource.period."end", 1, 10) AS DATE) AS ends
    FROM stay
    WHERE coalesce(resource.status, '') NOT IN ('planned', 'cancelled', 'entered-in-error')
),
visits AS (
    -- What is part of another of its kind, such as the days on one ward of a stay, is not counted beside it.
    SELECT *
    FROM counted
    WHERE NOT EXISTS (
        SELECT 1
        FROM (SELECT patient, kind, unnest([id, 'urn:' || lower(regexp_replace(id, '(?i)^urn:[a-z]+:', ''))]) AS name FROM counted) AS wholes
        WHERE wholes.patient = counted.patient AND wholes.kind = counted.kind AND wholes.name = counted.whole
    )
)
-- @misses
<name>_found AS (
    SELECT
        resource.subject.reference AS reference,
        resource.subject.identifier IS NOT NULL AS identified,
        name IN (SELECT name FROM names) AS met,
        name IN (SELECT name FROM called) AS there,
        name IS NOT NULL AS to_a_patient
    FROM <name>_read
),
<name>_misses AS (
    SELECT '<type>: read' AS what, NULL AS number, count(*) AS of FROM <name>_read
    UNION ALL
    SELECT
        unnest([
            '<type>: names a patient who is not there',
            '<type>: names a patient who is left aside',
            '<type>: names its patient by an identifier alone',
            '<type>: has its subject contained in itself',
            '<type>: has a subject that is not a patient, or none'
        ]),
        unnest([
            count(*) FILTER (WHERE to_a_patient AND NOT coalesce(there, false)),
            count(*) FILTER (WHERE there AND NOT coalesce(met, false)),
            count(*) FILTER (WHERE reference IS NULL AND identified),
            count(*) FILTER (WHERE starts_with(reference, '#')),
            count(*) FILTER (
                WHERE NOT to_a_patient AND NOT coalesce(starts_with(reference, '#'), false) AND (reference IS NOT NULL OR NOT identified)
            )
        ]),
        count(*)
    FROM <name>_found
    UNION ALL
    SELECT
        '<type>: is an older version, or the same again',
        (SELECT count(*) FROM <name>_found WHERE met) - (SELECT count(*) FROM <name>_last),
        (SELECT count(*) FROM <name>_read)
    UNION ALL
    @left name=<name>_last type=<type>
    UNION ALL
    @deep table=<table> type=<type>
)
-- @left
SELECT
    unnest([
        '<type>: has an extension that changes its meaning, or implicit rules',
        '<type>: is labelled as test data',
        '<type>: is labelled as a part of its resource alone, and counts'
    ]),
    unnest([
        count(*) FILTER (WHERE modified),
        count(*) FILTER (WHERE test AND NOT modified),
        count(*) FILTER (WHERE NOT test AND NOT modified AND list_contains(list_transform(resource.meta.tag, lambda tag: tag.code), 'SUBSETTED'))
    ]),
    count(*)
FROM <name>
-- @deep
SELECT '<type>: lies in a Bundle in a Bundle in another, none of which is opened' AS what, count(*) AS number, count(*) AS of
FROM (
    SELECT unnest(json_extract_string(json, '$.entry[*].resource.entry[*].resource.entry[*].resource.resourceType')) AS kind
    FROM <table>
    WHERE json->>'$.resourceType' = 'Bundle'
)
WHERE kind = '<type>'
UNION ALL
SELECT '<type>: is to be deleted by a Bundle, which is not done', count(*), count(*)
FROM (SELECT unnest(json_extract(json, '$.entry[*].request')) AS request FROM <table> WHERE json->>'$.resourceType' = 'Bundle')
WHERE request->>'$.method' = 'DELETE' AND starts_with(request->>'$.url', '<type>/')
