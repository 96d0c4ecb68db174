-- FHIR R4: one row a Patient.
-- Tables, each with the column json, a resource or a Bundle a row: patient, condition, observation, encounter.
-- What is of another type is left aside, so they may all be the same files. Of what a patient has several times under one id the last
-- version counts, by meta.lastUpdated, then meta.versionId. A subject is a Patient's id, whatever stands before it and its version
-- after it, or a URN; who is named by an identifier alone, or contained in the resource, is nobody. misses.sql counts what is left
-- aside.
-- Conditions by SNOMED CT or ICD-10, whatever their clinical status, unless refuted, excluded or entered in error; observations by LOINC in the
-- UCUM unit named here, the mean of those that are final, amended or corrected; systolic pressure also as a panel's component.
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
                "subject": {"reference": "VARCHAR"}
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
                "subject": {"reference": "VARCHAR"}
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
        try_cast(resource.meta.lastUpdated AS TIMESTAMPTZ) AS changed,
        try_cast(resource.meta.versionId AS BIGINT) AS version,
        resource
    FROM (
        SELECT
            url,
            json_transform(json, '{
                "id": "VARCHAR", "meta": {"lastUpdated": "VARCHAR", "versionId": "VARCHAR"},
                "status": "VARCHAR", "class": {"code": "VARCHAR"}, "period": {"start": "VARCHAR", "end": "VARCHAR"},
                "partOf": {"reference": "VARCHAR"}, "subject": {"reference": "VARCHAR"}
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
conditions AS (
    SELECT
        patient,
        bool_or((kind = 'snomed' AND code IN ('73211009', '44054006', '46635009')) OR (kind = 'icd-10' AND regexp_matches(code, '^E1[0-4]'))) AS diabetes,
        bool_or((kind = 'snomed' AND code IN ('38341003', '59621000')) OR (kind = 'icd-10' AND regexp_matches(code, '^I1[0-5]'))) AS hypertension,
        bool_or((kind = 'snomed' AND code IN ('84114007', '42343007')) OR (kind = 'icd-10' AND starts_with(code, 'I50'))) AS heart_failure,
        bool_or((kind = 'snomed' AND code = '13645005') OR (kind = 'icd-10' AND starts_with(code, 'J44'))) AS copd
    FROM (
        SELECT diagnoses.patient, systems.kind, upper(trim(diagnoses.coding.code)) AS code
        FROM (
            SELECT patient, unnest(resource.code.coding) AS coding
            FROM diagnosis
            WHERE NOT refuted
        ) AS diagnoses
        JOIN systems ON lower(systems.system) = regexp_replace(regexp_replace(lower(diagnoses.coding.system), '^https:', 'http:'), '/*([|].*)?$', '')
    )
    GROUP BY patient
),
parts AS (
    -- An observation, and the components of a panel, each once however often it is coded.
    SELECT row_number() OVER () AS part, patient, item
    FROM (
        SELECT patient, unnest(list_concat([{'code': resource.code, 'valueQuantity': resource.valueQuantity}], resource.component)) AS item
        FROM result
        WHERE resource.status IN ('final', 'amended', 'corrected')
    )
),
measured AS (
    -- A value with a comparator, such as < 5, is none.
    SELECT DISTINCT
        part,
        patient,
        CASE
            WHEN code = '4548-4' AND unit = '%' THEN 'hba1c'
            WHEN code = '2160-0' AND unit = 'mg/dL' THEN 'creatinine'
            WHEN code = '8480-6' AND unit = 'mm[Hg]' THEN 'systolic'
            WHEN code = '39156-5' AND unit = 'kg/m2' THEN 'bmi'
        END AS kind,
        value
    FROM (
        SELECT
            coded.*,
            coded.item.valueQuantity.code AS unit,
            try_cast(coded.item.valueQuantity.value AS DOUBLE) AS value,
            trim(coded.coding.code) AS code
        FROM (SELECT *, unnest(item.code.coding) AS coding FROM parts) AS coded
        JOIN systems
            ON systems.kind = 'loinc' AND lower(systems.system) = regexp_replace(regexp_replace(lower(coded.coding.system), '^https:', 'http:'), '/*([|].*)?$', '')
        WHERE coded.item.valueQuantity.comparator IS NULL
    )
    WHERE isfinite(value)
),
means AS (
    SELECT
        patient,
        avg(value) FILTER (WHERE kind = 'hba1c') AS hba1c,
        avg(value) FILTER (WHERE kind = 'creatinine') AS creatinine,
        avg(value) FILTER (WHERE kind = 'systolic') AS systolic,
        avg(value) FILTER (WHERE kind = 'bmi') AS bmi
    FROM measured
    GROUP BY patient
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
visited AS (
    SELECT patient, count(*) FILTER (WHERE kind = 'inpatient') AS stays, count(*) FILTER (WHERE kind = 'emergency') AS emergencies
    FROM visits
    GROUP BY patient
)
SELECT
    persons.patient,
    try_cast(substr(persons.resource.birthDate, 1, 4) AS INTEGER) AS birth_year,
    persons.resource.gender AS sex,
    CASE WHEN conditions.diabetes THEN 'yes' ELSE 'no' END AS diabetes,
    CASE WHEN conditions.hypertension THEN 'yes' ELSE 'no' END AS hypertension,
    CASE WHEN conditions.heart_failure THEN 'yes' ELSE 'no' END AS heart_failure,
    CASE WHEN conditions.copd THEN 'yes' ELSE 'no' END AS copd,
    means.hba1c,
    means.creatinine,
    means.systolic,
    means.bmi,
    coalesce(visited.stays, 0) AS stays,
    coalesce(visited.emergencies, 0) AS emergencies,
    CASE
        WHEN persons.resource.deceasedBoolean = 'true' OR persons.resource.deceasedDateTime IS NOT NULL THEN 'yes'
        WHEN persons.resource.deceasedBoolean = 'false' THEN 'no'
        WHEN coalesce(persons.resource.deceasedBoolean, persons.resource._deceasedBoolean, persons.resource._deceasedDateTime) IS NULL THEN 'no'
    END AS died
FROM persons
LEFT JOIN conditions ON conditions.patient = persons.patient
LEFT JOIN means ON means.patient = persons.patient
LEFT JOIN visited ON visited.patient = persons.patient
