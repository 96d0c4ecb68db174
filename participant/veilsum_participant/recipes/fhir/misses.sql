-- FHIR R4: how much of what the tables hold cohort.sql, encounters.sql and observations.sql leave aside, and why. For the site's own eyes:
-- `veilsum participant check --schema` asks it where the dataset names it as misses_file, and no study ever does.
-- Tables: patient, condition, observation, encounter, as of cohort.sql. Each row: of how many things (of) how many (number) are so
-- (what), and whether that is meant to be left aside; where number is NULL, how many there are.
WITH systems(system, kind) AS (
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
        ('http://fhir.de/CodeSystem/dimdi/icd-10-gm', 'icd-10')
),
versions AS (
    SELECT
        coalesce(resource.id, url) AS patient,
        url,
        try_cast(resource.meta.lastUpdated AS TIMESTAMPTZ) AS changed,
        try_cast(resource.meta.versionId AS BIGINT) AS version,
        resource
    FROM (
        SELECT
            url,
            json_transform(json, '{
                "id": "VARCHAR", "meta": {"lastUpdated": "VARCHAR", "versionId": "VARCHAR"},
                "gender": "VARCHAR", "birthDate": "VARCHAR", "deceasedBoolean": "VARCHAR", "deceasedDateTime": "VARCHAR",
                "_deceasedBoolean": "VARCHAR", "_deceasedDateTime": "VARCHAR",
                "link": [{"type": "VARCHAR"}]
            }') AS resource
        FROM (
            SELECT if(bundled, item->>'$.fullUrl', NULL) AS url, if(bundled, item->'$.resource', item) AS json
            FROM (
                SELECT type, type = 'Bundle' AS bundled, unnest(if(type = 'Bundle', json_extract(json, '$.entry[*]'), [json])) AS item
                FROM (SELECT json, json->>'$.resourceType' AS type FROM patient)
            )
            WHERE if(bundled, item->>'$.resource.resourceType', type) = 'Patient'
        )
    )
),
persons AS (
    -- The last version of each patient, unless another patient has replaced it.
    SELECT patient, url, resource
    FROM (
        SELECT
            *,
            row_number() OVER (PARTITION BY patient ORDER BY changed DESC NULLS LAST, version DESC NULLS LAST, resource DESC) AS place
        FROM versions
        WHERE patient IS NOT NULL
    )
    WHERE place = 1 AND NOT coalesce(list_contains(list_transform(resource.link, lambda link: link.type), 'replaced-by'), false)
),
names AS (
    -- What a reference calls a patient: its id, or a URN of its id or of its place in a Bundle.
    SELECT patient AS name, patient FROM persons
    UNION
    SELECT 'urn:' || lower(patient), patient FROM persons
    UNION
    SELECT 'urn:' || lower(regexp_extract(url, '(?i)^urn:[a-z]+:(.+)$', 1)), patient FROM persons WHERE starts_with(lower(url), 'urn:')
),
diagnosis_read AS (
    SELECT
        CASE
            WHEN regexp_matches(resource.subject.reference, '(?i)^urn:(uuid|oid):')
                THEN 'urn:' || lower(regexp_extract(resource.subject.reference, '(?i)^urn:[a-z]+:(.+)$', 1))
            ELSE nullif(regexp_extract(resource.subject.reference, '(?:^|/)Patient/([^/?#|]+)(?:/_history/[^/]+)?/?$', 1), '')
        END AS name,
        coalesce(resource.id, url) AS id,
        resource.subject.reference AS reference,
        resource.subject.identifier IS NOT NULL AS identified,
        try_cast(resource.meta.lastUpdated AS TIMESTAMPTZ) AS changed,
        try_cast(resource.meta.versionId AS BIGINT) AS version,
        resource
    FROM (
        SELECT
            url,
            json_transform(json, '{
                "id": "VARCHAR", "meta": {"lastUpdated": "VARCHAR", "versionId": "VARCHAR"},
                "code": {"coding": [{"system": "VARCHAR", "code": "VARCHAR",
                    "extension": [{"url": "VARCHAR", "valueCoding": {"code": "VARCHAR"}}]}]}, "verificationStatus": "JSON",
                "subject": {"reference": "VARCHAR", "identifier": "JSON"}
            }') AS resource
        FROM (
            SELECT if(bundled, item->>'$.fullUrl', NULL) AS url, if(bundled, item->'$.resource', item) AS json
            FROM (
                SELECT type, type = 'Bundle' AS bundled, unnest(if(type = 'Bundle', json_extract(json, '$.entry[*]'), [json])) AS item
                FROM (SELECT json, json->>'$.resourceType' AS type FROM condition)
            )
            WHERE if(bundled, item->>'$.resource.resourceType', type) = 'Condition'
        )
    )
),
diagnosis AS (
    -- Of each patient's, the last version of each; what has no id counts by itself.
    SELECT
        patient,
        resource,
        coalesce(list_has_any(json_extract_string(resource.verificationStatus, '$.coding[*].code'), ['refuted', 'entered-in-error']), false)
        OR coalesce(resource.verificationStatus->>'$' IN ('refuted', 'entered-in-error'), false)
        OR coalesce(list_contains(
            list_transform(
                flatten(list_transform(resource.code.coding, lambda coding: coding.extension)),
                lambda extension: extension.url || '|' || extension.valueCoding.code
            ),
            'http://fhir.de/StructureDefinition/icd-10-gm-diagnosesicherheit|A'
        ), false) AS refuted
    FROM (
        SELECT
            names.patient,
            diagnosis_read.id,
            diagnosis_read.resource,
            row_number() OVER (PARTITION BY names.patient, diagnosis_read.id ORDER BY changed DESC NULLS LAST, version DESC NULLS LAST, diagnosis_read.resource DESC) AS place
        FROM diagnosis_read
        JOIN names ON names.name = diagnosis_read.name
    )
    WHERE id IS NULL OR place = 1
),
result_read AS (
    SELECT
        CASE
            WHEN regexp_matches(resource.subject.reference, '(?i)^urn:(uuid|oid):')
                THEN 'urn:' || lower(regexp_extract(resource.subject.reference, '(?i)^urn:[a-z]+:(.+)$', 1))
            ELSE nullif(regexp_extract(resource.subject.reference, '(?:^|/)Patient/([^/?#|]+)(?:/_history/[^/]+)?/?$', 1), '')
        END AS name,
        coalesce(resource.id, url) AS id,
        resource.subject.reference AS reference,
        resource.subject.identifier IS NOT NULL AS identified,
        try_cast(resource.meta.lastUpdated AS TIMESTAMPTZ) AS changed,
        try_cast(resource.meta.versionId AS BIGINT) AS version,
        resource
    FROM (
        SELECT
            url,
            json_transform(json, '{
                "id": "VARCHAR", "meta": {"lastUpdated": "VARCHAR", "versionId": "VARCHAR"},
                "status": "VARCHAR", "code": {"coding": [{"system": "VARCHAR", "code": "VARCHAR"}]},
                "valueQuantity": {"value": "VARCHAR", "code": "VARCHAR", "comparator": "VARCHAR"},
                "component": [{"code": {"coding": [{"system": "VARCHAR", "code": "VARCHAR"}]},
                    "valueQuantity": {"value": "VARCHAR", "code": "VARCHAR", "comparator": "VARCHAR"}}],
                "effectiveDateTime": "VARCHAR", "effectiveInstant": "VARCHAR", "effectivePeriod": {"start": "VARCHAR"},
                "subject": {"reference": "VARCHAR", "identifier": "JSON"}
            }') AS resource
        FROM (
            SELECT if(bundled, item->>'$.fullUrl', NULL) AS url, if(bundled, item->'$.resource', item) AS json
            FROM (
                SELECT type, type = 'Bundle' AS bundled, unnest(if(type = 'Bundle', json_extract(json, '$.entry[*]'), [json])) AS item
                FROM (SELECT json, json->>'$.resourceType' AS type FROM observation)
            )
            WHERE if(bundled, item->>'$.resource.resourceType', type) = 'Observation'
        )
    )
),
result AS (
    -- Of each patient's, the last version of each; what has no id counts by itself.
    SELECT patient, resource
    FROM (
        SELECT
            names.patient,
            result_read.id,
            result_read.resource,
            row_number() OVER (PARTITION BY names.patient, result_read.id ORDER BY changed DESC NULLS LAST, version DESC NULLS LAST, result_read.resource DESC) AS place
        FROM result_read
        JOIN names ON names.name = result_read.name
    )
    WHERE id IS NULL OR place = 1
),
stay_read AS (
    SELECT
        CASE
            WHEN regexp_matches(resource.subject.reference, '(?i)^urn:(uuid|oid):')
                THEN 'urn:' || lower(regexp_extract(resource.subject.reference, '(?i)^urn:[a-z]+:(.+)$', 1))
            ELSE nullif(regexp_extract(resource.subject.reference, '(?:^|/)Patient/([^/?#|]+)(?:/_history/[^/]+)?/?$', 1), '')
        END AS name,
        coalesce(resource.id, url) AS id,
        CASE
            WHEN regexp_matches(resource.partOf.reference, '(?i)^urn:(uuid|oid):')
                THEN 'urn:' || lower(regexp_extract(resource.partOf.reference, '(?i)^urn:[a-z]+:(.+)$', 1))
            ELSE nullif(regexp_extract(resource.partOf.reference, '(?:^|/)Encounter/([^/?#|]+)(?:/_history/[^/]+)?/?$', 1), '')
        END AS whole,
        resource.subject.reference AS reference,
        resource.subject.identifier IS NOT NULL AS identified,
        try_cast(resource.meta.lastUpdated AS TIMESTAMPTZ) AS changed,
        try_cast(resource.meta.versionId AS BIGINT) AS version,
        resource
    FROM (
        SELECT
            url,
            json_transform(json, '{
                "id": "VARCHAR", "meta": {"lastUpdated": "VARCHAR", "versionId": "VARCHAR"},
                "status": "VARCHAR", "class": {"code": "VARCHAR"}, "period": {"start": "VARCHAR", "end": "VARCHAR"},
                "partOf": {"reference": "VARCHAR"}, "subject": {"reference": "VARCHAR", "identifier": "JSON"}
            }') AS resource
        FROM (
            SELECT if(bundled, item->>'$.fullUrl', NULL) AS url, if(bundled, item->'$.resource', item) AS json
            FROM (
                SELECT type, type = 'Bundle' AS bundled, unnest(if(type = 'Bundle', json_extract(json, '$.entry[*]'), [json])) AS item
                FROM (SELECT json, json->>'$.resourceType' AS type FROM encounter)
            )
            WHERE if(bundled, item->>'$.resource.resourceType', type) = 'Encounter'
        )
    )
),
stay AS (
    -- Of each patient's, the last version of each; what has no id counts by itself.
    SELECT patient, id, whole, resource
    FROM (
        SELECT
            names.patient,
            stay_read.id,
            stay_read.whole,
            stay_read.resource,
            row_number() OVER (PARTITION BY names.patient, stay_read.id ORDER BY changed DESC NULLS LAST, version DESC NULLS LAST, stay_read.resource DESC) AS place
        FROM stay_read
        JOIN names ON names.name = stay_read.name
    )
    WHERE id IS NULL OR place = 1
),
diagnosis_found AS (
    SELECT
        reference,
        identified,
        diagnosis_read.name IN (SELECT name FROM names) AS met,
        diagnosis_read.name IS NOT NULL AS to_a_patient
    FROM diagnosis_read
),
diagnosis_misses AS (
    SELECT 'Condition: read' AS what, NULL AS number, count(*) AS of FROM diagnosis_read
    UNION ALL
    SELECT
        unnest([
            'Condition: names a patient who is not there',
            'Condition: names its patient by an identifier alone',
            'Condition: has its subject contained in itself',
            'Condition: has a subject that is not a patient, or none'
        ]),
        unnest([
            count(*) FILTER (WHERE to_a_patient AND NOT coalesce(met, false)),
            count(*) FILTER (WHERE reference IS NULL AND identified),
            count(*) FILTER (WHERE starts_with(reference, '#')),
            count(*) FILTER (
                WHERE NOT to_a_patient AND NOT coalesce(starts_with(reference, '#'), false) AND (reference IS NOT NULL OR NOT identified)
            )
        ]),
        count(*)
    FROM diagnosis_found
    UNION ALL
    SELECT
        'Condition: is an older version, or the same again',
        (SELECT count(*) FROM diagnosis_found WHERE met) - (SELECT count(*) FROM diagnosis),
        (SELECT count(*) FROM diagnosis_read)
),
result_found AS (
    SELECT
        reference,
        identified,
        result_read.name IN (SELECT name FROM names) AS met,
        result_read.name IS NOT NULL AS to_a_patient
    FROM result_read
),
result_misses AS (
    SELECT 'Observation: read' AS what, NULL AS number, count(*) AS of FROM result_read
    UNION ALL
    SELECT
        unnest([
            'Observation: names a patient who is not there',
            'Observation: names its patient by an identifier alone',
            'Observation: has its subject contained in itself',
            'Observation: has a subject that is not a patient, or none'
        ]),
        unnest([
            count(*) FILTER (WHERE to_a_patient AND NOT coalesce(met, false)),
            count(*) FILTER (WHERE reference IS NULL AND identified),
            count(*) FILTER (WHERE starts_with(reference, '#')),
            count(*) FILTER (
                WHERE NOT to_a_patient AND NOT coalesce(starts_with(reference, '#'), false) AND (reference IS NOT NULL OR NOT identified)
            )
        ]),
        count(*)
    FROM result_found
    UNION ALL
    SELECT
        'Observation: is an older version, or the same again',
        (SELECT count(*) FROM result_found WHERE met) - (SELECT count(*) FROM result),
        (SELECT count(*) FROM result_read)
),
stay_found AS (
    SELECT
        reference,
        identified,
        stay_read.name IN (SELECT name FROM names) AS met,
        stay_read.name IS NOT NULL AS to_a_patient
    FROM stay_read
),
stay_misses AS (
    SELECT 'Encounter: read' AS what, NULL AS number, count(*) AS of FROM stay_read
    UNION ALL
    SELECT
        unnest([
            'Encounter: names a patient who is not there',
            'Encounter: names its patient by an identifier alone',
            'Encounter: has its subject contained in itself',
            'Encounter: has a subject that is not a patient, or none'
        ]),
        unnest([
            count(*) FILTER (WHERE to_a_patient AND NOT coalesce(met, false)),
            count(*) FILTER (WHERE reference IS NULL AND identified),
            count(*) FILTER (WHERE starts_with(reference, '#')),
            count(*) FILTER (
                WHERE NOT to_a_patient AND NOT coalesce(starts_with(reference, '#'), false) AND (reference IS NOT NULL OR NOT identified)
            )
        ]),
        count(*)
    FROM stay_found
    UNION ALL
    SELECT
        'Encounter: is an older version, or the same again',
        (SELECT count(*) FROM stay_found WHERE met) - (SELECT count(*) FROM stay),
        (SELECT count(*) FROM stay_read)
),
patient_misses AS (
    SELECT 'Patient: read' AS what, NULL AS number, count(*) AS of FROM versions
    UNION ALL
    SELECT
        unnest([
            'Patient: has no id',
            'Patient: is an older version, or the same again',
            'Patient: was replaced by another',
            'Patient: has no sex that is female or male',
            'Patient: has no year of birth',
            'Patient: has no word on whether they died'
        ]),
        unnest([
            (SELECT count(*) FROM versions WHERE patient IS NULL),
            (SELECT count(*) - count(DISTINCT patient) FROM versions WHERE patient IS NOT NULL),
            (SELECT count(DISTINCT patient) FROM versions) - (SELECT count(*) FROM persons),
            (SELECT count(*) FROM persons WHERE coalesce(resource.gender, '') NOT IN ('female', 'male')),
            (SELECT count(*) FROM persons WHERE try_cast(substr(resource.birthDate, 1, 4) AS INTEGER) IS NULL),
            (
                SELECT count(*) FROM persons
                WHERE resource.deceasedDateTime IS NULL AND coalesce(resource.deceasedBoolean, '') NOT IN ('true', 'false')
                    AND coalesce(resource.deceasedBoolean, resource._deceasedBoolean, resource._deceasedDateTime) IS NOT NULL
            )
        ]),
        (SELECT count(*) FROM versions)
),
codings AS (
    SELECT 'Condition' AS type, row_number() OVER () AS place, resource.code.coding AS codings
    FROM diagnosis
    WHERE NOT refuted
    UNION ALL
    SELECT 'Observation', row_number() OVER (), item.code.coding
    FROM (
        SELECT unnest(list_concat([{'code': resource.code, 'valueQuantity': resource.valueQuantity}], resource.component)) AS item
        FROM result
        WHERE resource.status IN ('final', 'amended', 'corrected')
    )
),
coded AS (
    SELECT
        codings.type,
        codings.place,
        codings.coding.system AS system,
        systems.kind
    FROM (SELECT type, place, unnest(codings) AS coding FROM codings) AS codings
    LEFT JOIN systems ON lower(systems.system) = regexp_replace(regexp_replace(lower(codings.coding.system), '^https:', 'http:'), '/*([|].*)?$', '')
),
unknown AS (
    -- Resources, and components of a panel, none of whose codes is of a system that the queries know for their type.
    SELECT type, place, list(DISTINCT coalesce(system, 'none')) AS own
    FROM coded
    GROUP BY type, place
    HAVING NOT bool_or(coalesce(if(type = 'Condition', kind IN ('snomed', 'icd-10'), kind = 'loinc'), false))
),
system_misses AS (
    SELECT
        types.type || ': has no code' AS what,
        (SELECT count(*) FROM codings WHERE codings.type = types.type AND coalesce(len(codings.codings), 0) = 0) AS number,
        (SELECT count(*) FROM codings WHERE codings.type = types.type) AS of
    FROM (VALUES ('Condition'), ('Observation')) AS types(type)
    UNION ALL
    SELECT
        types.type || ': has codes of unknown systems alone',
        (SELECT count(*) FROM unknown WHERE unknown.type = types.type),
        (SELECT count(*) FROM codings WHERE codings.type = types.type)
    FROM (VALUES ('Condition'), ('Observation')) AS types(type)
    UNION ALL
    (
        SELECT type || ': of these, code system ' || left(system, 200), count(*), (SELECT count(*) FROM unknown WHERE unknown.type = of_system.type)
        FROM (SELECT type, unnest(own) AS system FROM unknown) AS of_system
        GROUP BY type, system
        ORDER BY count(*) DESC, system
        LIMIT 10
    )
),
known AS (
    SELECT DISTINCT
        parts.place,
        CASE parts.code WHEN '4548-4' THEN 'hba1c' WHEN '2160-0' THEN 'creatinine' WHEN '8480-6' THEN 'systolic' WHEN '39156-5' THEN 'bmi' END AS kind,
        CASE parts.code WHEN '4548-4' THEN '%' WHEN '2160-0' THEN 'mg/dL' WHEN '8480-6' THEN 'mm[Hg]' WHEN '39156-5' THEN 'kg/m2' END AS wanted,
        parts.item.valueQuantity.code AS unit,
        try_cast(parts.item.valueQuantity.value AS DOUBLE) AS value,
        parts.item.valueQuantity.comparator AS comparator
    FROM (
        SELECT items.place, items.item, trim(items.coding.code) AS code
        FROM (
            SELECT place, item, unnest(item.code.coding) AS coding
            FROM (
                SELECT row_number() OVER () AS place, item
                FROM (
                    SELECT unnest(list_concat([{'code': resource.code, 'valueQuantity': resource.valueQuantity}], resource.component)) AS item
                    FROM result
                    WHERE resource.status IN ('final', 'amended', 'corrected')
                )
            )
        ) AS items
        JOIN systems ON systems.kind = 'loinc' AND lower(systems.system) = regexp_replace(regexp_replace(lower(items.coding.system), '^https:', 'http:'), '/*([|].*)?$', '')
    ) AS parts
    WHERE parts.code IN ('4548-4', '2160-0', '8480-6', '39156-5')
),
counted AS (
    SELECT
        patient,
        id,
        whole,
        CASE resource.class.code
            WHEN 'IMP' THEN 'inpatient'
            WHEN 'ACUTE' THEN 'inpatient'
            WHEN 'NONAC' THEN 'inpatient'
            WHEN 'AMB' THEN 'outpatient'
            WHEN 'EMER' THEN 'emergency'
        END AS kind
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
),
value_misses AS (
    SELECT
        unnest([
            'Condition: is refuted or entered in error',
            'Observation: is not final, amended or corrected',
            'Encounter: is planned, cancelled or entered in error',
            'Encounter: has a class other than inpatient, outpatient and emergency',
            'Encounter: is part of another of its kind',
            'Encounter: ends before it begins'
        ]) AS what,
        unnest([
            (SELECT count(*) FROM diagnosis WHERE refuted),
            (SELECT count(*) FROM result WHERE coalesce(resource.status, '') NOT IN ('final', 'amended', 'corrected')),
            (SELECT count(*) FROM stay WHERE NOT coalesce(resource.status, '') NOT IN ('planned', 'cancelled', 'entered-in-error')),
            (
                SELECT count(*) FROM stay
                WHERE coalesce(resource.status, '') NOT IN ('planned', 'cancelled', 'entered-in-error')
                    AND coalesce(resource.class.code, '') NOT IN ('IMP', 'ACUTE', 'NONAC', 'AMB', 'EMER')
            ),
            (SELECT count(*) FROM counted) - (SELECT count(*) FROM visits),
            (
                SELECT count(*) FROM stay
                WHERE try_cast(substr(resource.period."end", 1, 10) AS DATE) < try_cast(substr(resource.period.start, 1, 10) AS DATE)
            )
        ]) AS number,
        unnest([
            (SELECT count(*) FROM diagnosis),
            (SELECT count(*) FROM result),
            (SELECT count(*) FROM stay),
            (SELECT count(*) FROM stay),
            (SELECT count(*) FROM stay),
            (SELECT count(*) FROM stay)
        ]) AS of
    UNION ALL
    SELECT
        unnest([
            'Observation: ' || kind || ' in another unit than ' || any_value(wanted),
            'Observation: ' || kind || ' with a comparator, such as <',
            'Observation: ' || kind || ' without a value'
        ]),
        unnest([
            count(*) FILTER (WHERE value IS NOT NULL AND comparator IS NULL AND unit IS DISTINCT FROM wanted),
            count(*) FILTER (WHERE value IS NOT NULL AND comparator IS NOT NULL),
            count(*) FILTER (WHERE value IS NULL)
        ]),
        count(*)
    FROM known
    GROUP BY kind
)
SELECT
    what,
    number,
    of,
    what LIKE '%older version%' OR what LIKE '%was replaced%' OR what LIKE '%entered in error' OR what LIKE '%is not final%'
    OR what LIKE '%with a comparator%' OR what LIKE '%without a value' OR what LIKE '%has a class other%' OR what LIKE '%is part of another%' AS meant
FROM (
    SELECT what, number, of FROM patient_misses
    UNION ALL
    SELECT what, number, of FROM diagnosis_misses
    UNION ALL
    SELECT what, number, of FROM result_misses
    UNION ALL
    SELECT what, number, of FROM stay_misses
    UNION ALL
    SELECT what, number, of FROM system_misses
    UNION ALL
    SELECT what, number, of FROM value_misses
)
