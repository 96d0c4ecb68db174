-- FHIR R4: one row a Patient.
-- Tables, each with the column json, a resource or a Bundle a row: patient, condition, observation, encounter.
@tables
-- Conditions by SNOMED CT or ICD-10, whatever their clinical status, suspicions too, unless refuted, excluded or entered in error; observations
-- by LOINC in the UCUM unit named here, the mean of those of the patient that are final, amended or corrected; systolic pressure also as a
-- panel's component.
WITH RECURSIVE
@systems,
@persons,
@resource name=diagnosis table=condition type=Condition,
@resource name=result table=observation type=Observation,
@resource name=stay table=encounter type=Encounter,
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
            WHERE NOT (
                @refuted
            )
        ) AS diagnoses
        JOIN systems ON @system coding=diagnoses.coding
    )
    GROUP BY patient
),
@measured,
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
@visits,
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
